package model

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"ratelimit/src/backend"
)

// fleetLab is one store that several replicas share, each with a way to it of its own. Nothing but the store is theirs
// together, and nothing is kept in a replica, so all of them answer as one service would.
type fleetLab struct {
	ways  []lab // nil: its replica has crashed
	knows Traits
	// reopen is the way of the replica that takes the place of one that crashed.
	reopen func(replica int) (lab, error)
}

func newFleet(replicas int, open func(replica int) (lab, error)) (*fleetLab, error) {
	f := &fleetLab{reopen: open}
	for i := range replicas {
		way, err := open(i)
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.ways = append(f.ways, way)
	}
	f.knows = f.ways[0].traits()
	return f, nil
}

// openFleet is a fleet on an empty Redis.
func openFleet(ways []*redisServer) (lab, error) {
	if _, err := ways[0].server.Try("FLUSHALL"); err != nil {
		return nil, err
	}
	return newFleet(len(ways), func(i int) (lab, error) { return ways[i].connect(false) })
}

func (f *fleetLab) backend() backend.Backend { return f.ways[0].backend() }
func (f *fleetLab) traits() Traits           { return f.knows }
func (f *fleetLab) fault(to Fault) error     { return f.ways[0].fault(to) }
func (f *fleetLab) quiet() error             { return f.each(lab.quiet) }
func (f *fleetLab) check() error             { return f.each(lab.check) }
func (f *fleetLab) close() error             { return f.each(lab.close) }
func (f *fleetLab) each(do func(lab) error) (err error) {
	for _, way := range f.ways {
		if way != nil {
			err = errors.Join(err, do(way))
		}
	}
	return err
}

// started is a Service that ends.
type started interface {
	Service
	close() error
}

// startAll is a service on l's store, or one for each replica, that answers.
func startAll(l lab, prefix string) (started, error) {
	shared, ok := l.(*fleetLab)
	if !ok {
		s, err := start(l, prefix)
		if err != nil {
			return nil, err
		}
		if err = s.Reload(Rules{}.YAML()); err == nil {
			err = s.well(func() error { return nil })
		}
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		return s, nil
	}
	f := &fleet{lab: shared, prefix: prefix, yaml: Rules{}.YAML(), all: make([]*service, len(shared.ways)), crashing: -1}
	if err := f.Fault(None); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// fleet is the services of a fleetLab. Requests go to them in turns. A fault is of the one whose turn is next.
type fleet struct {
	lab    *fleetLab
	prefix string
	yaml   string
	all    []*service // nil: it has crashed
	asked  int
	// crashing is the replica that crashes during the next requests; -1: none.
	crashing int
}

func (f *fleet) Traits() Traits { return f.lab.traits() }

func (f *fleet) close() (err error) {
	for _, s := range f.all {
		if s != nil {
			err = errors.Join(err, s.close())
		}
	}
	return err
}

func (f *fleet) Reload(yaml string) error {
	f.yaml = yaml
	for _, s := range f.all {
		if s == nil {
			continue
		}
		if err := s.Reload(yaml); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) Ask(at time.Time, asks []Ask) []*Answer {
	answers := make([]*Answer, len(asks))
	first := make(chan struct{}) // closed when the first request is answered
	var all sync.WaitGroup
	for i, ask := range asks {
		replica := f.asked % len(f.all)
		s := f.all[replica]
		f.asked++
		if s == nil {
			answers[i] = &Answer{Failed: true, Why: fmt.Sprintf("replica %d has crashed", replica)}
			continue
		}
		s.clock.Store(at.UnixNano())
		select {
		case <-s.asksStore:
		default:
		}
		all.Go(func() {
			answers[i] = s.ask(s.conns[i%len(s.conns)], ask)
			if i == 0 {
				close(first)
			}
		})
	}
	var err error
	if i := f.crashing; i >= 0 { // The first request is its.
		select {
		case <-f.all[i].asksStore:
		case <-first:
		}
		err = errors.Join(f.all[i].close(), f.lab.ways[i].close())
		f.all[i], f.lab.ways[i], f.crashing = nil, nil, -1
	}
	all.Wait()
	if err != nil {
		answers[0] = &Answer{Failed: true, Why: fmt.Sprintf("a replica did not end: %v", err)}
	}
	return answers
}

// Fault is Service.Fault. None also starts replicas in the places of those that have crashed.
func (f *fleet) Fault(to Fault) error {
	next := f.asked % len(f.all)
	f.crashing = -1
	switch {
	case to == Crash && f.all[next] != nil:
		f.crashing = next
		return nil
	case to == Crash:
		return nil
	case to != None:
		for range f.all {
			if f.all[next] != nil {
				return f.lab.ways[next].fault(to)
			}
			next = (next + 1) % len(f.all)
		}
		return errors.New("all replicas have crashed")
	}
	for i := range f.all {
		if err := f.heal(i); err != nil {
			return fmt.Errorf("replica %d: %w", i, err)
		}
	}
	for i, s := range f.all {
		if err := s.well(f.lab.ways[i].quiet); err != nil {
			return fmt.Errorf("replica %d: %w", i, err)
		}
	}
	return nil
}

// heal ends what is wrong with a replica.
func (f *fleet) heal(i int) (err error) {
	if f.all[i] != nil {
		return f.lab.ways[i].fault(None)
	}
	if f.lab.ways[i] == nil {
		if f.lab.ways[i], err = f.lab.reopen(i); err != nil {
			return err
		}
	}
	if f.all[i], err = start(f.lab.ways[i], f.prefix); err != nil {
		return err
	}
	return f.all[i].Reload(f.yaml)
}
