package rls

import (
	"bytes"
	"context"
	"runtime"

	"golang.org/x/sync/semaphore"

	"ratelimit/src/limiter"
)

// turns bounds the memory and the cores that large requests use at a time, over all
// protocols. They get half of the cores, so that small requests, which do not take turns,
// always find one.
type turns struct {
	most   int64               // bytes
	memory *semaphore.Weighted // of most
	cores  chan struct{}       // holds an element for each core in use
}

func newTurns(mostBytes int64) *turns {
	return &turns{
		most:   mostBytes,
		memory: semaphore.NewWeighted(mostBytes),
		cores:  make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
}

const (
	// fewBytes is the memory that a request may use without a turn.
	fewBytes = 32 << 10
	// manyBytes is the memory from which on a request has to wait for a core: that of
	// about 64 descriptors.
	manyBytes = 128 << 10
	// longRequest is the length in bytes from which on the descriptors of a request are
	// not counted before its turn.
	longRequest = 64 << 10
)

// turn is what turns has granted to one large request: memory, and perhaps a core. The zero
// value is for a small request, which needs neither.
type turn struct {
	of    *turns // nil: nothing
	bytes int64
	core  bool
}

// begin waits until a request may use that many bytes, and a core if they are many. It
// fails if ctx ends. The caller must call end.
func (t *turns) begin(ctx context.Context, bytes int64) (turn, error) {
	if bytes < fewBytes {
		return turn{}, nil
	}
	own := turn{of: t, bytes: min(bytes, t.most)}
	if err := t.memory.Acquire(ctx, own.bytes); err != nil {
		return turn{}, err
	}
	if bytes >= manyBytes {
		if err := own.resume(ctx); err != nil {
			own.end()
			return turn{}, err
		}
	}
	return own, nil
}

// pause gives the core to the next request, if t has one, and reports whether it had.
func (t *turn) pause() bool {
	if !t.core {
		return false
	}
	t.core = false
	<-t.of.cores
	return true
}

// resume waits for a core. It fails if ctx ends.
func (t *turn) resume(ctx context.Context) error {
	select {
	case t.of.cores <- struct{}{}:
		t.core = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end gives back all that t has. Further calls do nothing.
func (t *turn) end() {
	t.pause()
	if t.of != nil {
		t.of.memory.Release(t.bytes)
		t.of = nil
	}
}

// wireBytes estimates how many bytes the decision on a gRPC request uses besides data.
func wireBytes(data []byte) int64 {
	const (
		tooShort      = 512     // bytes of a request that is never large
		perDescriptor = 2 << 10 // with its entry, status, charge and hit
		perByte       = 4       // of text, where it is repaired, and of further entries
	)
	if len(data) < tooShort {
		return 0
	}
	descriptors := limiter.MaxDescriptors
	if len(data) < longRequest {
		descriptors = 0
		for f := (fields{rest: data}); f.next(); {
			if f.tag == 2<<3|bytesType {
				descriptors++
			}
		}
	}
	return int64(min(descriptors, limiter.MaxDescriptors)*perDescriptor + len(data)*perByte)
}

// jsonBytes returns an upper bound of the bytes allocated for the messages of a /json body,
// the decision and its reply. Each descriptor and each entry is an object.
func (s *Service) jsonBytes(body []byte) int64 {
	perObject, perByte := int64(400), int64(8)
	if s.cfg.Metadata {
		perObject, perByte = 1100, 14
	}
	const perDescriptor = 4 << 10 // for its status
	objects := int64(bytes.Count(body, []byte{'{'}))
	return objects*perObject + int64(len(body))*perByte + min(objects/2, limiter.MaxDescriptors)*perDescriptor
}
