package memcached

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/bradfitz/gomemcache/memcache"
)

// tableOf is a table of servers that are not there.
func tableOf(hash Hash, addrs ...string) *table {
	var nodes []*node
	for _, addr := range addrs {
		nodes = append(nodes, &node{addr: server(addr)})
	}
	return newTable(hash, nodes)
}

// Keys are where gomemcache, and with it envoyproxy/ratelimit, looks for them.
func TestModuloIsGomemcaches(t *testing.T) {
	for n := 1; n <= 7; n++ {
		var addrs []string
		for i := range n {
			addrs = append(addrs, fmt.Sprintf("127.0.0.%d:11211", i+1))
		}
		if n == 7 {
			addrs[5] = "/run/memcached.sock"
			addrs[6] = addrs[0] // with twice the share
		}
		ours := tableOf(Modulo, addrs...)
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
			got := ours.pick([]byte(key)).addr
			if got.String() != want.String() || got.Network() != want.Network() {
				t.Fatalf("%s of %d servers: %v, want %v", key, n, got, want)
			}
		}
	}
}

// All versions and replicas have to agree on where a key is.
func TestRendezvousStays(t *testing.T) {
	table := tableOf(Rendezvous, "mc-1:11211", "mc-2:11211", "mc-3:11211")
	got := ""
	for i := range 20 {
		addr := table.pick(fmt.Appendf(nil, "domain_user_%d_1767225600", i)).addr
		got += string(addr[3])
	}
	if want := "32232212333322221212"; got != want {
		t.Errorf("the servers are %s, want %s", got, want)
	}
}

// Every server has about its share, in whatever order they are named, and only the
// keys of one that leaves move.
func TestRendezvousMovesOneShare(t *testing.T) {
	const keys = 30_000
	addrs := []string{"mc-1:11211", "mc-2:11211", "mc-3:11211", "mc-4:11211", "mc-5:11211"}
	whole := tableOf(Rendezvous, addrs...)
	for left := range addrs {
		fewer := slices.Delete(slices.Clone(addrs), left, left+1)
		slices.Reverse(fewer)
		rest := tableOf(Rendezvous, fewer...)
		share := 0
		for i := range keys {
			key := []byte("k_" + strconv.Itoa(i))
			before, after := whole.pick(key).addr, rest.pick(key).addr
			if string(before) == addrs[left] {
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
	for _, tt := range []struct {
		hash          Hash
		before, after []string
		changed       bool
		least, most   float64
	}{
		{Modulo, nil, []string{"a:1"}, false, 0, 0},
		{Modulo, []string{"a:1", "b:1"}, []string{"a:1", "b:1"}, false, 0, 0},
		{Modulo, []string{"a:1", "b:1"}, []string{"b:1", "a:1"}, true, 1, 1},
		{Modulo, []string{"a:1", "b:1", "c:1"}, []string{"a:1", "b:1"}, true, 0.6, 0.7},
		{Modulo, []string{"a:1"}, []string{"b:1"}, true, 1, 1},
		{Rendezvous, []string{"a:1", "b:1"}, []string{"b:1", "a:1"}, true, 0, 0},
		{Rendezvous, []string{"a:1", "b:1", "c:1"}, []string{"a:1", "b:1"}, true, 0.3, 0.37},
		{Rendezvous, []string{"a:1", "b:1"}, []string{"a:1", "b:1", "c:1"}, true, 0.3, 0.37},
	} {
		before := tableOf(tt.hash, tt.before...)
		if tt.before == nil {
			before.err = errNobody
		}
		c, changed := change(before, tableOf(tt.hash, tt.after...))
		if changed != tt.changed || c.Moved < tt.least || c.Moved > tt.most {
			t.Errorf("%v to %v by hash %d: %t, %v moved", tt.before, tt.after, tt.hash, changed, c.Moved)
		}
	}
}
