package rls

import (
	"bytes"
	"context"
	"runtime"

	"golang.org/x/sync/semaphore"

	"ratelimit/src/limiter"
)

// largeRequestCapacity bounds the memory and the cores that large requests of all protocols use at a time. They get
// half of the cores, so that small requests, which need no reservation, always find one.
type largeRequestCapacity struct {
	maxBytes        int64
	memorySemaphore *semaphore.Weighted
	coreSlots       chan struct{} // an element for each core in use.
}

func newLargeRequestCapacity(maxBytes int64) *largeRequestCapacity {
	return &largeRequestCapacity{
		maxBytes:        maxBytes,
		memorySemaphore: semaphore.NewWeighted(maxBytes),
		coreSlots:       make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
}

const (
	minReservedBytes = 32 << 10  // the memory from which on a request needs a reservation.
	minBytesForCore  = 128 << 10 // that from which on it includes a core. 64 descriptors need that much.
)

// memoryReservation is the memory, and perhaps a core, that a large request may use. The zero value is that of a small
// request, which needs neither.
type memoryReservation struct {
	capacity      *largeRequestCapacity // nil for small requests and after release.
	reservedBytes int64
	hasCore       bool
}

// reserve waits until a request may use that many bytes and, if they are many, a core. It fails if ctx ends. The caller
// must call release.
func (t *largeRequestCapacity) reserve(ctx context.Context, bytes int64) (memoryReservation, error) {
	if bytes < minReservedBytes {
		return memoryReservation{}, nil
	}
	own := memoryReservation{capacity: t, reservedBytes: min(bytes, t.maxBytes)}
	if err := t.memorySemaphore.Acquire(ctx, own.reservedBytes); err != nil {
		return memoryReservation{}, err
	}
	if bytes >= minBytesForCore {
		if err := own.acquireCore(ctx); err != nil {
			own.release()
			return memoryReservation{}, err
		}
	}
	return own, nil
}

// releaseCore passes the core of t to the next request. It reports whether t had a core.
func (t *memoryReservation) releaseCore() bool {
	if !t.hasCore {
		return false
	}
	t.hasCore = false
	<-t.capacity.coreSlots
	return true
}

// acquireCore waits for a core. It fails if ctx ends.
func (t *memoryReservation) acquireCore(ctx context.Context) error {
	select {
	case t.capacity.coreSlots <- struct{}{}:
		t.hasCore = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release returns the memory and the core of t. Further calls do nothing.
func (t *memoryReservation) release() {
	t.releaseCore()
	if t.capacity != nil {
		t.capacity.memorySemaphore.Release(t.reservedBytes)
		t.capacity = nil
	}
}

// estimateProtobufMemory estimates how many bytes the decision of the gRPC request in data allocates.
func estimateProtobufMemory(data []byte) int64 {
	const (
		minLength     = 512      // the length of the shortest message that may be large.
		maxCounted    = 64 << 10 // longer messages are assumed to have limiter.MaxDescriptors.
		perDescriptor = 2 << 10  // includes the entry, status, charge and hit of a descriptor.
		perByte       = 4        // covers further entries, and the repair of invalid text.
	)
	if len(data) < minLength {
		return 0
	}
	descriptors := limiter.MaxDescriptors
	if len(data) < maxCounted {
		descriptors = 0
		for f := (Fields{Message: data}); f.Next(); {
			if f.Tag == 2<<3|BytesType {
				descriptors++
			}
		}
	}
	return int64(min(descriptors, limiter.MaxDescriptors)*perDescriptor + len(data)*perByte)
}

// estimateJSONMemory returns an upper bound of the bytes that decoding a /json body, deciding it and writing its reply
// allocate. Each descriptor and each entry is a JSON object.
func (s *Service) estimateJSONMemory(body []byte) int64 {
	perObject, perByte := int64(400), int64(8)
	if s.cfg.MetadataEnabled {
		perObject, perByte = 1100, 14
	}
	const perDescriptor = 4 << 10 // perDescriptor is the size of a status with its charge and hit.
	objects := int64(bytes.Count(body, []byte{'{'}))
	return objects*perObject + int64(len(body))*perByte + min(objects/2, limiter.MaxDescriptors)*perDescriptor
}
