package credentials

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fetches is a Fetch that gives the number of its call, with a life, or an error.
type fetches struct {
	mu    sync.Mutex // guards the fields below
	calls int
	life  time.Duration // 0: unknown
	took  time.Duration
	err   error
}

func (f *fetches) fetch(ctx context.Context) (int, time.Time, error) {
	f.mu.Lock()
	f.calls++
	calls, life, took, err := f.calls, f.life, f.took, f.err
	f.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return 0, time.Time{}, ctx.Err()
	}
	if err != nil || life == 0 {
		return calls, time.Time{}, err
	}
	return calls, time.Now().Add(life), nil
}

// breakOff makes all fetches from now on end with err, or not.
func (f *fetches) breakOff(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// count returns the number of calls.
func (f *fetches) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// reports are what a Keeper reported.
type reports struct {
	mu   sync.Mutex // guards last
	last Report
}

func (r *reports) add(report Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = report
}

func (r *reports) latest() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// keep runs a Keeper with f in a bubble, and calls test.
func keep(t *testing.T, f *fetches, test func(k *Keeper[int], told *reports)) {
	synctest.Test(t, func(*testing.T) {
		told := new(reports)
		k := NewKeeper(f.fetch, told.add)
		ctx, stop := context.WithCancel(context.Background())
		go k.Run(ctx)
		test(k, told)
		stop()
		synctest.Wait()
	})
}

// sleep sleeps, and then waits for what the Keeper does at that time.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// get returns the value of k, waiting at most a second.
func get(k *Keeper[int]) string {
	defer synctest.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	v, _, err := k.Get(ctx)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(v)
}

// The next value is fetched after about half of the life, whether or not somebody asks for it.
func TestFetchedAhead(t *testing.T) {
	t.Parallel()
	f := &fetches{life: time.Hour}
	keep(t, f, func(k *Keeper[int], _ *reports) {
		for i, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "1"},
			{26 * time.Minute, "1"}, // 0:26
			{8 * time.Minute, "2"},  // 0:34
			{19 * time.Minute, "2"}, // 0:53
			{15 * time.Minute, "3"}, // 1:08
		} {
			sleep(step.after)
			if got := get(k); got != step.want {
				t.Errorf("step %d: %s, want %s", i, got, step.want)
			}
		}
	})
}

// While fetching fails, the old value is used to its end. Attempts go on, with pauses up to maxFetchPause.
func TestOldValueUntilItsEnd(t *testing.T) {
	t.Parallel()
	f := &fetches{life: 10 * time.Minute}
	keep(t, f, func(k *Keeper[int], told *reports) {
		if got := get(k); got != "1" {
			t.Fatal(got)
		}
		f.breakOff(errors.New("broken"))
		sleep(10*time.Minute - time.Nanosecond)
		if got := get(k); got != "1" {
			t.Errorf("at the end: %s", got)
		}
		if r := told.latest(); r.Err == nil || !r.Left || !r.Ends.Equal(time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC)) {
			t.Errorf("report %+v", r)
		}
		if n := f.count(); n < 10 || n > 40 { // five minutes with pauses of 15 s to 30 s, and shorter ones at first
			t.Errorf("%d attempts", n)
		}
		sleep(time.Minute)
		if got := get(k); got != "broken" {
			t.Errorf("after the end: %s", got)
		}
		if _, _, ok := k.Peek(); ok || told.latest().Left {
			t.Error("there still is a value")
		}
		f.breakOff(nil)
		sleep(maxFetchPause)
		n := f.count()
		if got := get(k); got != fmt.Sprint(n) {
			t.Errorf("after the recovery: %s, want %d", got, n)
		}
	})
}

// A value of unknown life is fetched for new connections, at most twice a second, and stays if that fails.
func TestUnknownLife(t *testing.T) {
	t.Parallel()
	f := &fetches{}
	keep(t, f, func(k *Keeper[int], _ *reports) {
		for i, want := range []string{"1", "1", "2"} { // at 0, 300 and 600 ms
			if got := get(k); got != want {
				t.Errorf("%d: %s, want %s", i, got, want)
			}
			sleep(300 * time.Millisecond)
		}
		sleep(time.Hour)
		if n := f.count(); n != 2 {
			t.Errorf("%d fetches without a connection", n)
		}
		f.mu.Lock()
		f.took, f.err = time.Hour, errors.New("broken")
		f.mu.Unlock()
		for _, wait := range []time.Duration{500 * time.Millisecond, 500 * time.Millisecond, 0} { // half of a second
			asked := time.Now()
			if got := get(k); got != "2" || time.Since(asked) != wait {
				t.Errorf("while it hangs: %s after %v, want %v", got, time.Since(asked), wait)
			}
			sleep(fetchTimeout / 2)
		}
	})
}

// One attempt serves all who wait; it is abandoned after fetchTimeout.
func TestOneAttemptAtATime(t *testing.T) {
	t.Parallel()
	f := &fetches{life: time.Hour, took: 500 * time.Millisecond}
	keep(t, f, func(k *Keeper[int], told *reports) {
		done := make(chan string)
		for range 100 {
			go func() {
				v, _, err := k.Get(context.Background())
				done <- fmt.Sprint(v, err)
			}()
		}
		for range 100 {
			if got := <-done; got != "1 <nil>" {
				t.Error(got)
			}
		}
		sleep(time.Second)
		if n := f.count(); n != 1 {
			t.Errorf("%d fetches", n)
		}
		f.mu.Lock()
		f.took = time.Hour
		f.mu.Unlock()
		sleep(35*time.Minute + fetchTimeout)
		if r := told.latest(); !errors.Is(r.Err, context.DeadlineExceeded) {
			t.Errorf("report %+v", r)
		}
		asked := time.Now()
		if got := get(k); got != "1" || time.Now() != asked {
			t.Errorf("%s after %v, while the next attempt hangs", got, time.Since(asked))
		}
	})
}

// A refused value is replaced at once, but not again and again.
func TestRefusedValue(t *testing.T) {
	t.Parallel()
	f := &fetches{life: time.Hour}
	keep(t, f, func(k *Keeper[int], _ *reports) {
		if get(k) != "1" {
			t.Fatal("no value")
		}
		k.Refused() // Connections that were opened with the value before it say so.
		sleep(time.Second)
		if got := get(k); got != "1" {
			t.Errorf("after an early refusal: %s", got)
		}
		k.Refused()
		if got := get(k); got != "2" {
			t.Errorf("after a refusal: %s", got)
		}
		for range 600 { // for a minute
			sleep(100 * time.Millisecond)
			k.Refused()
		}
		if n := f.count(); n > 12 {
			t.Errorf("%d fetches in a minute of refusals", n)
		}
		sleep(2 * time.Hour) // Values that nobody refuses make the pauses short again.
		k.Refused()
		n := f.count()
		if got := get(k); got != fmt.Sprint(n+1) {
			t.Errorf("later: %s, want %d", got, n+1)
		}
	})
}

// What has expired already, by the clock of this host, is not used.
func TestExpiredValue(t *testing.T) {
	t.Parallel()
	f := &fetches{life: -3 * time.Minute}
	keep(t, f, func(k *Keeper[int], _ *reports) {
		const want = "what it gave expired at 1999-12-31T23:57:00Z, 3m0s ago: check the clock of this host and what gives it"
		if got := get(k); got != want {
			t.Errorf("got %s", got)
		}
	})
}

// Connections renew at different times, while the next token is there and before their own ends.
func TestRenewalTimes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	end := now.Add(15 * time.Minute)
	seen := make(map[time.Duration]bool)
	for range 100 {
		at := RenewalTime(now, end).Sub(now)
		seen[at.Round(time.Second)] = true
		if at < 9*time.Minute || at > 12*time.Minute {
			t.Errorf("renewed after %v", at)
		}
		again := RetryTime(now, end).Sub(now)
		if again < 30*time.Second || again > 40*time.Second {
			t.Errorf("retried after %v", again)
		}
	}
	if len(seen) < 30 {
		t.Errorf("%d different times", len(seen))
	}
	if at := RenewalTime(now, time.Time{}); !at.IsZero() {
		t.Errorf("a token without an end is renewed at %v", at)
	}
}
