package overrides

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// stores returns a new, empty store of each kind.
func stores(t *testing.T) map[string]Store {
	t.Helper()
	file, _, err := OpenFile(filepath.Join(t.TempDir(), "limits"))
	if err != nil {
		t.Fatal(err)
	}
	inMemory, _, _ := OpenFile("")
	return map[string]Store{
		"memory": inMemory, "file": file,
		"redis": NewSharedStore(commander(redistest.Start(t, redistest.Options{})), "p:"),
	}
}

// commander sends commands to s.
func commander(s *redistest.Server) Commander {
	return func(_ context.Context, _ string, words ...string) (any, error) {
		args := make([]any, len(words))
		for i, w := range words {
			args[i] = w
		}
		return s.Try(args...)
	}
}

// texts returns what d has, sorted.
func (d *Delta) texts() (list []string) {
	for _, v := range d.Set {
		list = append(list, v.Subject+" "+v.Limit)
	}
	slices.Sort(list)
	return list
}

// All stores keep overrides and their history in the same way.
func TestStores(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := epoch
			do := func(edits ...Edit) []Result {
				t.Helper()
				results, _, err := s.Commit(t.Context(), edits, Limits{Now: now, MaxKept: 4})
				if err != nil {
					t.Fatal(err)
				}
				return results
			}
			has := func(want ...string) *Delta {
				t.Helper()
				d, err := s.Read(t.Context(), 0)
				if err != nil || !d.Whole || d.More || d.Count != len(want) || !slices.Equal(d.texts(), want) {
					t.Fatalf("%+v, %v; want %q", d, err, want)
				}
				sum := uint64(0)
				for _, v := range d.Set {
					sum += v.Version
				}
				if d.Sum != sum%SumModulus {
					t.Fatalf("the sum is %d, want %d", d.Sum, sum)
				}
				return d
			}
			has()
			eve, bot := override(t, "user=eve", "x10"), override(t, `user="bot,7"`, "ban")
			if r := do(set(eve), set(bot)); r[0].Before != nil || r[1].Before != nil || r[0].Version == 0 {
				t.Errorf("%+v", r)
			}
			has(`user="bot,7" ban`, "user=eve x10")
			less := eve
			less.Limit, less.Until, less.Reason = "x2", now.Add(time.Hour), "ünïcode \"quoted\""
			if r := do(set(less)); r[0].Before == nil || !reflect.DeepEqual(*r[0].Before, eve) {
				t.Errorf("before: %+v", r[0].Before)
			}
			d := has(`user="bot,7" ban`, "user=eve x2")
			i := slices.IndexFunc(d.Set, func(v Versioned) bool { return v.Limit == "x2" })
			if !reflect.DeepEqual(d.Set[i].Override, less) {
				t.Errorf("kept %+v, want %+v", d.Set[i].Override, less)
			}
			if r := do(unset(bot), unset(override(t, "user=nobody", "ban"))); r[0].Before == nil || r[1].Before != nil {
				t.Errorf("%+v", r)
			}
			has("user=eve x2")
			absent := Edit{Override: eve, OnlyAbsent: true}
			lost := Edit{Override: bot, OnlyAbsent: true, Known: SumModulus}
			if r := do(absent, lost); r[0].Version != 0 || r[1].Version == 0 {
				t.Errorf("%+v", r)
			}
			has(`user="bot,7" ban`, "user=eve x2")
			do(set(override(t, "a=1", "1")), set(override(t, "a=2", "2")))
			_, _, err := s.Commit(t.Context(), []Edit{set(override(t, "a=3", "3")), set(override(t, "a=4", "4"))},
				Limits{Now: now, MaxKept: 4})
			if !errors.Is(err, ErrTooMany) || !strings.Contains(err.Error(), "at most 4 are kept") {
				t.Errorf("too many: %v", err)
			}
			do(set(override(t, "a=2", "20")))
			has("a=1 1", "a=2 20", `user="bot,7" ban`, "user=eve x2")
			now = now.Add(time.Hour + time.Second)
			do()
			has("a=1 1", "a=2 20", `user="bot,7" ban`)

			records, err := s.History(t.Context())
			var got []string
			for _, r := range records {
				text := r.Action + " " + r.Subject
				if r.Before != nil {
					text += " before " + r.Before.Limit
				}
				got = append(got, text)
			}
			want := []string{
				"set a=2 before 2", "set a=2", "set a=1", `unset user="bot,7" before ban`, "set user=eve before x10",
				`set user="bot,7"`, "set user=eve",
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("history %q, %v\nwant    %q", got, err, want)
			}
			if r := records[len(records)-1]; r.By != "10.0.0.9:1234" || !r.At.Equal(epoch) || r.Who != "anna" {
				t.Errorf("%+v", r)
			}
			for i := range MaxHistory + 10 {
				do(set(override(t, "a=1", fmt.Sprint(i))))
			}
			if records, err = s.History(t.Context()); err != nil || len(records) != MaxHistory || records[0].Limit != "1009" {
				t.Errorf("%d records, %v", len(records), err)
			}
		})
	}
}

// A file has after a restart what it had before, and says where it is damaged.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits")
	open := func() (*FileStore, bool) {
		t.Helper()
		s, cut, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return s, cut
	}
	state := func(s *FileStore) string {
		d, _ := s.Read(t.Context(), 0)
		records, _ := s.History(t.Context())
		return fmt.Sprint(d.texts(), len(records))
	}
	s, _ := open()
	for i := range 2000 {
		if _, _, err := s.Commit(t.Context(), []Edit{set(override(t, fmt.Sprintf("a=%d", i%7), fmt.Sprint(i)))},
			Limits{Now: epoch, MaxKept: 10}); err != nil {
			t.Fatal(err)
		}
	}
	want := state(s)
	if again, cut := open(); state(again) != want || cut {
		t.Errorf("after a restart: %s, want %s", state(again), want)
	}
	whole := testfiles.Read(t, path)
	if lines := strings.Count(string(whole), "\n"); lines != 7+MaxHistory {
		t.Errorf("%d lines", lines)
	}
	testfiles.Write(t, path, append(slices.Clone(whole), whole[:20]...))
	if again, cut := open(); state(again) != want || !cut {
		t.Errorf("after a cut line: %s, %t, want %s", state(again), cut, want)
	}
	whole[200] ^= 1
	testfiles.Write(t, path, whole)
	if _, _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), path+":1:1: the line is damaged") {
		t.Error(err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(whole) {
		t.Error("the damaged file was changed")
	}
	if _, _, err := OpenFile(filepath.Join(path, "below")); err == nil {
		t.Error("no error for a path that cannot be")
	}
}

// replicas starts registries of one Redis, and returns how they are asked.
func replicas(t *testing.T, s *redistest.Server, n int) (list []*Registry, restored chan int) {
	t.Helper()
	restored = make(chan int, 10*n)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{}, n)
	for range n {
		g := New(Config{
			Store: NewSharedStore(commander(s), ""), MaxOverrides: 100_000, OnRestored: func(n int) { restored <- n },
		})
		list = append(list, g)
		go func() {
			_ = g.Run(ctx)
			done <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		stop()
		for range n {
			<-done
		}
	})
	return list, restored
}

// await waits until all registries list the overrides, for at most patience.
func await(t *testing.T, list []*Registry, patience time.Duration, want ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for i, g := range list {
		for {
			var got []string
			for _, o := range g.List("") {
				got = append(got, o.Subject+" "+o.Limit)
			}
			if slices.Equal(got, want) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("replica %d has %q, want %q", i, got, want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

const patience = 10 * time.Second

func TestReplicas(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{})
	list, restored := replicas(t, s, 3)
	commit(t, list[0], set(override(t, "user=eve", "x10")))
	commit(t, list[1], set(override(t, "user=bob", "ban")))
	await(t, list, patience, "user=bob ban", "user=eve x10")
	commit(t, list[2], unset(override(t, "user=bob", "ban")), set(override(t, "user=eve", "x3")))
	await(t, list, patience, "user=eve x3")

	commit(t, list[0], set(override(t, "user=mia", "7/hour")))
	await(t, list, patience, "user=eve x3", "user=mia 7/hour")
	s.Do(t, "FLUSHALL")
	if n := <-restored; n != 2 {
		t.Errorf("%d overrides were stored again", n)
	}
	await(t, list, patience, "user=eve x3", "user=mia 7/hour")
	late, _ := replicas(t, s, 1)
	await(t, late, patience, "user=eve x3", "user=mia 7/hour")
	commit(t, late[0], unset(override(t, "user=eve", "x3")))
	await(t, append(list, late...), patience, "user=mia 7/hour")

	// A failover may lose the last changes, and others may come in their place.
	dump := s.Do(t, "HGETALL", "{ratelimit_overrides}_state").([]any)
	commit(t, list[0], set(override(t, "user=lost", "ban")))
	await(t, append(list, late...), patience, "user=lost ban", "user=mia 7/hour")
	s.Do(t, "HDEL", "{ratelimit_overrides}_all", "shop\n\nuser=lost")
	s.Do(t, "ZREM", "{ratelimit_overrides}_versions", "shop\n\nuser=lost")
	s.Do(t, append([]any{"HSET", "{ratelimit_overrides}_state"}, dump...)...)
	await(t, append(list, late...), patience, "user=lost ban", "user=mia 7/hour")
	s.Kill()
	for _, g := range append(list, late...) {
		for g.State().Failure == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	await(t, append(list, late...), patience, "user=lost ban", "user=mia 7/hour")
	if _, err := list[0].Commit(t.Context(), []Edit{set(override(t, "user=x", "ban"))}); err == nil {
		t.Error("a change was accepted although Redis is away")
	}
}

// A store that has lost changes gets them again from replicas, but for those that were removed meanwhile. Nothing
// depends on which replica notices the loss first, or on what it does first.
func TestRemovedWhileTheStoreIsEmpty(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{})
	var kept []any // the keys of the store before the changes that it loses
	forget := func() {
		s.Do(t, "FLUSHALL")
		for i := 0; i < len(kept); i += 2 {
			s.Do(t, "RESTORE", kept[i], 0, kept[i+1])
		}
	}
	for _, tt := range []struct {
		name string
		keep bool // a failover loses only the last changes
	}{{"all is lost", false}, {"the last changes are lost", true}} {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 1))
			kept = nil
			forget()
			list := make([]*Registry, 3)
			for i := range list {
				list[i] = New(Config{Store: NewSharedStore(commander(s), ""), MaxOverrides: 10})
			}
			follow := func() {
				for _, i := range append(r.Perm(len(list)), r.Perm(len(list))...) {
					for range 4 {
						list[i].follow(t.Context())
					}
				}
			}
			old := override(t, "user=old", "x2")
			commit(t, list[0], set(override(t, "user=first", "1")), set(old))
			commit(t, list[1], unset(override(t, "user=eve", "1")))
			follow()
			if tt.keep {
				for _, key := range s.Do(t, "KEYS", "*").([]any) {
					kept = append(kept, key, s.Do(t, "DUMP", key))
				}
			}
			eve := override(t, "user=eve", "x10")
			commit(t, list[0], set(eve), set(override(t, "user=bob", "ban")))
			follow()
			forget()
			for _, i := range r.Perm(len(list))[:r.IntN(3)] {
				list[i].follow(t.Context())
			}
			commit(t, list[r.IntN(3)], unset(eve))
			if r.IntN(2) == 0 {
				commit(t, list[r.IntN(3)], set(override(t, "user=new", "5")), unset(old))
				follow()
				await(t, list, 0, "user=bob ban", "user=first 1", "user=new 5")
			} else {
				follow()
				await(t, list, 0, "user=bob ban", "user=first 1", "user=old x2")
			}
			if t.Failed() {
				t.Fatalf("%s, seed %d", tt.name, seed)
			}
		}
	}
}

// What a replica has changed itself is not lost with the store, even if it has not read the store since.
func TestOwnChangesAreStoredAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{})
	for _, first := range []string{"no read", "a read"} {
		s.Do(t, "FLUSHALL")
		g := New(Config{Store: NewSharedStore(commander(s), ""), MaxOverrides: 10})
		if first == "a read" {
			g.follow(t.Context())
		}
		commit(t, g, set(override(t, "user=eve", "ban")))
		s.Do(t, "FLUSHALL")
		for g.follow(t.Context()) {
		}
		await(t, []*Registry{g}, 0, "user=eve ban")
		late := New(Config{Store: NewSharedStore(commander(s), ""), MaxOverrides: 10})
		late.follow(t.Context())
		await(t, []*Registry{late}, 0, "user=eve ban")
	}
}

// A store that takes no writes, as a full Redis does, gets what it has lost once it does, and that is said once.
func TestLostChangesOfAFullStore(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{})
	isFull, said, restored := false, []error{}, 0
	command := func(ctx context.Context, key string, words ...string) (any, error) {
		if isFull && words[1] == commitScript {
			return nil, errors.New("OOM")
		}
		return commander(s)(ctx, key, words...)
	}
	g := New(Config{
		Store: NewSharedStore(command, ""), MaxOverrides: 10, OnRestored: func(n int) { restored += n },
		OnState: func(err error) { said = append(said, err) },
	})
	commit(t, g, set(override(t, "user=eve", "ban")))
	s.Do(t, "FLUSHALL")
	isFull = true
	for range 5 {
		g.follow(t.Context())
		await(t, []*Registry{g}, 0, "user=eve ban")
	}
	if failures := g.State().Failures; len(said) != 1 || said[0] == nil || restored != 0 || failures != 5 {
		t.Errorf("said %v, %d were stored again, %d failures", said, restored, failures)
	}
	isFull = false
	for range 3 {
		g.follow(t.Context())
	}
	await(t, []*Registry{g}, 0, "user=eve ban")
	if len(said) != 2 || said[1] != nil || restored != 1 {
		t.Errorf("said %v, %d were stored again", said, restored)
	}
}

// Many changes reach all replicas, those that start later, too.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{})
	list, _ := replicas(t, s, 2)
	var want []string
	var edits []Edit
	for i := range 5000 {
		o := override(t, fmt.Sprintf("user=%05d", i), "x10")
		edits = append(edits, set(o))
		if i%5 > 0 {
			want = append(want, o.Subject+" x10")
		}
	}
	for part := range slices.Chunk(edits, 100) {
		commit(t, list[0], part...)
	}
	for part := range slices.Chunk(edits, 500) {
		for i := 0; i < len(part); i += 5 {
			commit(t, list[1], unset(part[i].Override))
		}
	}
	late, _ := replicas(t, s, 1)
	await(t, append(list, late...), 30*time.Second, want...)
}
