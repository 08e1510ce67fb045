package chaos

import "time"

// machine tells whether others keep us from the processors.
type machine struct {
	stop chan struct{}
	busy chan bool
}

const (
	nap = 5 * time.Millisecond
	// A nap that ends this much too late, or naps that are late by this part of the time
	// in total, show that the machine delays calls.
	nuisance = 50 * time.Millisecond
	mostLost = 0.05
)

func watchMachine() *machine {
	m := &machine{stop: make(chan struct{}), busy: make(chan bool)}
	go func() {
		begun := time.Now()
		var lost, longest time.Duration
		for {
			lay := time.Now()
			select {
			case <-time.After(nap):
				late := time.Since(lay) - nap
				lost, longest = lost+late, max(longest, late)
			case <-m.stop:
				m.busy <- longest > nuisance || lost.Seconds() > mostLost*time.Since(begun).Seconds()
				return
			}
		}
	}()
	return m
}

// end tells whether it was busy.
func (m *machine) end() bool {
	close(m.stop)
	return <-m.busy
}
