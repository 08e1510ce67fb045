package files

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRead(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	synctest.Test(t, func(t *testing.T) {
		var r Reads
		started, release := 0, make(chan struct{})
		slow := func() (int, error) { started++; <-release; return 7, nil }
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i, tt := range []struct {
			ctx     context.Context
			f       func() (int, error)
			value   int
			err     string // empty: none
			took    time.Duration
			hanging int
		}{
			{t.Context(), func() (int, error) { return 7, nil }, 7, "", 0, 0},
			{t.Context(), func() (int, error) { return 0, failed }, 0, "failed", 0, 0},
			{t.Context(), func() (int, error) { time.Sleep(9 * time.Second); return 7, nil }, 7, "", 9 * time.Second, 0},
			{
				t.Context(), func() (int, error) { time.Sleep(11 * time.Second); return 7, nil }, 0,
				"not read within 10s: check the file system (NFS, FUSE)", 10 * time.Second, 1,
			},
			// that one has returned
			{t.Context(), func() (int, error) { time.Sleep(2 * time.Second); return 7, nil }, 7, "", 2 * time.Second, 0},
			{short, slow, 0, "context deadline exceeded", 0, 1},
			{t.Context(), slow, 0, "not read within 10s: check the file system (NFS, FUSE)", 10 * time.Second, 2},
			{t.Context(), slow, 0, "not read within 10s: check the file system (NFS, FUSE)", 10 * time.Second, 3},
			{t.Context(), slow, 0, "not read within 10s: check the file system (NFS, FUSE)", 10 * time.Second, 4},
			{t.Context(), slow, 0, "not read, as 4 earlier reads have not returned: check the file system (NFS, FUSE)", 0, 4},
		} {
			before := time.Now()
			value, err := Read(tt.ctx, &r, tt.f)
			if took := time.Since(before); value != tt.value || (err == nil) != (tt.err == "") ||
				err != nil && err.Error() != tt.err || took != tt.took {
				t.Errorf("%d: %d, %v after %v; want %d, %s after %v", i, value, err, took, tt.value, tt.err, tt.took)
			}
			synctest.Wait()
			if r.Hanging() != tt.hanging {
				t.Errorf("%d: %d hang, want %d", i, r.Hanging(), tt.hanging)
			}
		}
		if started != MaxHanging {
			t.Errorf("%d reads, want %d", started, MaxHanging)
		}
		close(release)
		synctest.Wait()
		if r.Hanging() != 0 {
			t.Errorf("%d hang, want none", r.Hanging())
		}
		if value, err := Read(t.Context(), &r, slow); value != 7 || err != nil {
			t.Errorf("%d, %v", value, err)
		}
	})
}
