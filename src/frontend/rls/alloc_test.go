//go:build !race

package rls

import (
	"testing"

	"google.golang.org/grpc/mem"
)

// The race detector empties pools at random, so this runs without it: see
// `make test`.
func TestAnswersDoNotAllocate(t *testing.T) {
	for _, headers := range []bool{false, true} {
		f := twin(t, headers)
		for i, msg := range usual()[:8] {
			var in mem.Buffer = mem.SliceBuffer(encode(t, msg))
			ctx := t.Context()
			ask := func() {
				c := f.pool.Get().(*call)
				c.buf = in
				out, err := f.answer(ctx, c)
				if err != nil {
					t.Fatal(err)
				}
				out.(*reply).Put(nil)
				f.release(c)
			}
			for range 10 {
				ask()
			}
			if n := testing.AllocsPerRun(100, ask); n > 0 {
				t.Errorf("request %d, headers %t: %v allocations", i, headers, n)
			}
		}
	}
}
