package bench

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 9 0 1500 1 2"
	for _, tt := range []struct {
		stat string
		want time.Duration
		bad  bool
	}{
		{stat: "12 (ratelimit)" + rest, want: 2810 * time.Millisecond},
		{stat: "12 (a b) R 9 9 (c)" + rest, want: 2810 * time.Millisecond},
		{stat: "12 (cut) S 1 2", bad: true},
		{stat: "", bad: true},
		{stat: strings.ReplaceAll("12 (odd)"+rest, "250", "-1"), bad: true},
	} {
		got, err := parseStat([]byte(tt.stat))
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%q: got %v, %v, want %v", tt.stat, got, err, tt.want)
		}
	}
}

func TestCPUTimes(t *testing.T) {
	self := Process{Name: "self", PID: os.Getpid()}
	const most = 1 << 22 // pids are below
	times, err := cpuTimes([]Process{self, {Name: "nobody", PID: most}})
	if err == nil || !strings.Contains(err.Error(), "pid 4194304: there is no such process") {
		t.Error(err)
	}
	if len(times) != 3 || times[1] != -1 {
		t.Fatal(times)
	}
	for begun := time.Now(); time.Since(begun) < 50*time.Millisecond; { // until both clocks have moved
		_ = strings.Repeat("x", 1000)
	}
	again, err := cpuTimes([]Process{self})
	if err != nil || again[0] < times[0] || again[1] <= times[2] {
		t.Errorf("%v, then %v, %v", times, again, err)
	}
}
