package backendtest

import (
	"context"
	"sync"
	"testing"

	"ratelimit/src/backend"
)

// refereeStore is the referee as a store, so that the tables can be tested before a store exists that passes them.
type refereeStore struct {
	mu      sync.Mutex
	referee *referee
}

func (s *refereeStore) Take(_ context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 0; i < len(b.Hits); i = b.GroupEnd(i) {
		copy(b.Verdicts[i:], s.referee.takeGroup(b.Hits[i:b.GroupEnd(i)], b.UnixNano()))
	}
	return nil
}

func TestRefereePassesTables(t *testing.T) {
	open := func(*testing.T) backend.Backend { return &refereeStore{referee: newReferee(false)} }
	var suite Suite
	suite.addKinds()
	suite.testSteps(t, open)
	suite.testWindows(t, open)
	suite.testHoldSteps(t, open)
	suite.testHoldWaits(t, open)
	testPlainBesideHeld(t, open(t))
	testConcurrentHolds(t, open(t))
}
