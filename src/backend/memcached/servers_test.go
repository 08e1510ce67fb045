package memcached

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/bradfitz/gomemcache/memcache"
)

// Keys are where gomemcache, and with it envoyproxy/ratelimit, looks for them.
func TestModuloIsGomemcaches(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 7; n++ {
		var addrs []string
		for i := range n {
			addrs = append(addrs, fmt.Sprintf("127.0.0.%d:11211", i+1))
		}
		if n == 7 {
			addrs[5] = "/run/memcached.sock"
			addrs[6] = addrs[0] // with twice the share
		}
		ours := newLayout(Modulo, addrs)
		var theirs memcache.ServerList
		if err := theirs.SetServers(addrs...); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			key := fmt.Sprintf("domain_key_%d_1767225600", i*i)
			want, err := theirs.PickServer(key)
			if err != nil {
				t.Fatal(err)
			}
			got := addrOfKey(&ours, []byte(key))
			if got != want.String() || (protocol{}).Network(got) != want.Network() {
				t.Fatalf("%s of %d servers: %v, want %v", key, n, got, want)
			}
		}
	}
}

// All versions and replicas have to agree on where a key is.
func TestRendezvousStays(t *testing.T) {
	t.Parallel()
	servers := newLayout(Rendezvous, []string{"mc-1:11211", "mc-2:11211", "mc-3:11211"})
	got := ""
	for i := range 20 {
		addr := addrOfKey(&servers, fmt.Appendf(nil, "domain_user_%d_1767225600", i))
		got += string(addr[3])
	}
	if want := "32232212333322221212"; got != want {
		t.Errorf("the servers are %s, want %s", got, want)
	}
}

// Every server has about its share, in whatever order they are named, and only the
// keys of one that leaves move.
func TestRendezvousMovesOneShare(t *testing.T) {
	t.Parallel()
	const keys = 30_000
	addrs := []string{"mc-1:11211", "mc-2:11211", "mc-3:11211", "mc-4:11211", "mc-5:11211"}
	whole := newLayout(Rendezvous, addrs)
	for left := range addrs {
		fewer := slices.Delete(slices.Clone(addrs), left, left+1)
		slices.Reverse(fewer)
		rest := newLayout(Rendezvous, fewer)
		share := 0
		for i := range keys {
			key := []byte("k_" + strconv.Itoa(i))
			before, after := addrOfKey(&whole, key), addrOfKey(&rest, key)
			if before == addrs[left] {
				share++
			} else if after != before {
				t.Fatalf("%s moved from %s to %s without need", key, before, after)
			}
		}
		if share < keys/5*9/10 || share > keys/5*11/10 {
			t.Errorf("%s has %d of %d keys", addrs[left], share, keys)
		}
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		hash          HashMethod
		before, after []string
		least, most   float64
	}{
		{Modulo, []string{"a:1", "b:1"}, []string{"b:1", "a:1"}, 1, 1},
		{Modulo, []string{"a:1", "b:1", "c:1"}, []string{"a:1", "b:1"}, 0.6, 0.7},
		{Modulo, []string{"a:1"}, []string{"b:1"}, 1, 1},
		{Rendezvous, []string{"a:1", "b:1"}, []string{"b:1", "a:1"}, 0, 0},
		{Rendezvous, []string{"a:1", "b:1", "c:1"}, []string{"a:1", "b:1"}, 0.3, 0.37},
		{Rendezvous, []string{"a:1", "b:1"}, []string{"a:1", "b:1", "c:1"}, 0.3, 0.37},
	} {
		before, after := newLayout(tt.hash, tt.before), newLayout(tt.hash, tt.after)
		if c := compareLayouts(&before, &after); c.MovedKeyShare < tt.least || c.MovedKeyShare > tt.most {
			t.Errorf("%v to %v by hash %d: %v moved", tt.before, tt.after, tt.hash, c.MovedKeyShare)
		}
	}
}

// What SRV finds first, or again, is no change.
func TestFindingTheSameIsNoChange(t *testing.T) {
	t.Parallel()
	s, err := New(Config{SRV: srv(0), OnServersChange: func(c ServersChange) { t.Errorf("got %+v", c) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		protocol{s}.useFoundServers(ctx, []string{"a:1", "b:1"})
	}
	if n := s.Counts.ServerChanges.Load(); n != 0 {
		t.Errorf("%d changes", n)
	}
}
