package rls

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httptest"
	"runtime"
	"testing"

	"ratelimit/src/frontend/connlimit"
)

// chargeReader notes what an account holds before each read.
type chargeReader struct {
	io.Reader
	conn *connlimit.MemoryAccount
	held []int64
}

func (r *chargeReader) Read(p []byte) (int, error) {
	r.held = append(r.held, r.conn.HeldBytes())
	return r.Reader.Read(p)
}

// A body whose length is known is read into one piece of memory.
func TestBodyIsAllocatedOnce(t *testing.T) {
	body := bytes.Repeat([]byte{' '}, maxBodyBytes)
	for _, isKnown := range []bool{true, false} {
		r := httptest.NewRequest("POST", "/json", bytes.NewReader(body))
		most := uint64(maxBodyBytes + maxBodyBytes/8)
		if !isKnown {
			r.ContentLength, most = -1, 4*maxBodyBytes
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := readBody(httptest.NewRecorder(), r)
		runtime.ReadMemStats(&after)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > most {
			t.Errorf("the length is known %t: %d bytes were allocated, want at most %d", isKnown, n, most)
		}
	}
}

// The memory for a body is charged before it is allocated, less what the connection has charged for bytes that it has
// read.
func TestBodyIsChargedBefore(t *testing.T) {
	const length = 100_000
	budget := connlimit.NewMemoryBudget(1 << 20)
	conn := budget.OpenAccount(func(int64) {})
	in := &chargeReader{io.LimitReader(neverEnding{}, length), conn, nil}
	if body, err := readCharged(in, length, conn); err != nil || len(body) != length || conn.HeldBytes() != 0 {
		t.Errorf("%d bytes, %v, %d are held afterwards", len(body), err, conn.HeldBytes())
	}
	if want := []int64{length + bytes.MinRead, bytes.MinRead}; fmt.Sprint(in.held) != fmt.Sprint(want) {
		t.Errorf("%d were held before each read, want %d", in.held, want)
	}
	small := connlimit.NewMemoryBudget(length / 2)
	conn = small.OpenAccount(func(int64) {})
	in = &chargeReader{io.LimitReader(neverEnding{}, length), conn, nil}
	if _, err := readCharged(in, length, conn); err == nil || len(in.held) > 0 {
		t.Errorf("beyond the budget: %v after %d reads", err, len(in.held))
	}
}

// neverEnding is spaces without end.
type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
