package remote

import (
	"testing"
	"time"
)

// A call waits from 0 to 50 ms while the server answers others.
func TestProgress(t *testing.T) {
	ms := func(n int) time.Time { return time.Unix(1, 0).Add(time.Duration(n) * time.Millisecond) }
	for _, tt := range []struct {
		name    string
		answers []int // ms; those before 0 are not of the call's time
		least   int
		want    bool
	}{
		{"no answers", nil, 1, false},
		{"answers before it came", []int{-30, -2, -1}, 1, false},
		{"answers all the time", []int{2, 12, 22, 32, 42}, 2, true},
		{"the server stands still at once", []int{1, 2, 3}, 2, false},
		{"the server stands still for more than half of the time", []int{2, 12, 24}, 2, false},
		{"the server stands still for less", []int{2, 12, 26}, 2, true},
		{"one answer, to what was sent before", []int{45}, 2, false},
		{"one answer is enough", []int{45}, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p ServerProgress
			answer := func(at int) { p.RecordAnswer(ms(at)) }
			i := 0
			for ; i < len(tt.answers) && tt.answers[i] < 0; i++ {
				answer(tt.answers[i])
			}
			from := p.StartWaiting(ms(0))
			for ; i < len(tt.answers); i++ {
				answer(tt.answers[i])
			}
			if got := p.AnsweredDuring(from, ms(50), tt.least); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
