package h2

import (
	"slices"
	"sync"
	"testing"
)

// A client that sends a call as soon as one is answered gets batches that are about as large as before, but nothing
// waits for calls that do not come.
func TestGather(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards batches
	var batches []int
	s := startServer(t, Config{Decide: func(b *Batch) {
		mu.Lock()
		defer mu.Unlock()
		batches = append(batches, len(b.Calls))
		echo(b)
	}})
	c := s.connect()
	// sending guards c's output and the variables below: the server may yield before a flush has returned.
	var sending sync.Mutex
	meanwhile := 0 // how many calls the client sends when the server yields
	var ids []uint32
	send := func(n int) {
		for range n {
			ids = append(ids, c.call("m"))
		}
		c.flush()
	}
	s.yield = func() {
		sending.Lock()
		defer sending.Unlock()
		send(meanwhile)
	}
	sent := func(i int) (id uint32, ok bool) {
		sending.Lock()
		defer sending.Unlock()
		if i == len(ids) {
			return 0, false
		}
		return ids[i], true
	}
	for _, tt := range []struct {
		name           string
		now, meanwhile int
		want           []int
	}{
		{name: "the first calls", now: 8, meanwhile: 1, want: []int{8}},
		{name: "a part of the usual calls", now: 1, meanwhile: 7, want: []int{8}},
		{name: "half of them", now: 4, meanwhile: 1, want: []int{4}},
		{name: "no more calls", now: 1, meanwhile: 0, want: []int{1}},
		{name: "fewer each time", now: 1, meanwhile: 0, want: []int{1}},
		{name: "and fewer", now: 1, meanwhile: 1, want: []int{2}},
	} {
		mu.Lock()
		batches = nil
		mu.Unlock()
		sending.Lock()
		meanwhile, ids = tt.meanwhile, nil
		send(tt.now)
		sending.Unlock()
		for i := 0; ; i++ {
			id, ok := sent(i)
			if !ok {
				break
			}
			c.expectAnswer(id, "m")
		}
		mu.Lock()
		if !slices.Equal(batches, tt.want) {
			t.Errorf("%s: batches %v, want %v", tt.name, batches, tt.want)
		}
		mu.Unlock()
	}
}

// Alternating large and small reads keep calls in order and answer each once, with the processor yielded for real.
func TestGatheredCallsAreAnswered(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	c := s.connect()
	for round := range 50 {
		var ids []uint32
		for range 1 + round*7%13 {
			ids = append(ids, c.call("m"))
			if round%3 == 1 {
				c.flush()
			}
		}
		c.flush()
		for _, id := range ids {
			c.expectAnswer(id, "m")
		}
	}
}
