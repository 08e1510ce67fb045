package bench

import (
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// shown is a message as domain: key=value + key=value.
func shown(t *testing.T, m mem.BufferSlice) string {
	t.Helper()
	var msg pb.RateLimitRequest
	if err := proto.Unmarshal(m.Materialize(), &msg); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range msg.GetDescriptors() {
		if len(d.GetEntries()) != 1 {
			t.Errorf("%v: not one entry", d)
		}
		list = append(list, d.GetEntries()[0].GetKey()+"="+d.GetEntries()[0].GetValue())
	}
	return msg.GetDomain() + ": " + strings.Join(list, " + ")
}

func TestMessages(t *testing.T) {
	for _, tt := range []struct {
		workload string
		keys     int
		want     []string
	}{
		{"hot", 9, []string{"d: k=hot"}},
		{"overlimit", 9, []string{"d: k=overlimit"}},
		{"nomatch", 9, []string{"d: no_rule_has_this_key=x"}},
		{"uniform", 1, []string{"d: k=0"}},
		{"zipf", 3, []string{"d: k=0", "d: k=1", "d: k=2"}},
		{"multi", 6, []string{"d: k=0 + k=1 + k=2 + k=3", "d: k=4 + k=5 + k=0 + k=1"}},
		{"multi", 1, []string{"d: k=0 + k=0 + k=0 + k=0"}},
	} {
		l, err := newLoad(&Config{Workload: tt.workload, Domain: "d", Key: "k", Keys: tt.keys})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range l.messages {
			got = append(got, shown(t, m))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s of %d keys: got %q, want %q", tt.workload, tt.keys, got, tt.want)
		}
	}
}

func TestMessagesOfOneLength(t *testing.T) {
	l, err := newLoad(&Config{Workload: "uniform", Domain: "d", Key: "k", Keys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if first, last := shown(t, l.messages[0]), shown(t, l.messages[999]); first != "d: k=000" || last != "d: k=999" {
		t.Errorf("from %s to %s", first, last)
	}
}

func TestMessagesTakeBoundedMemory(t *testing.T) {
	long := strings.Repeat("x", maxNameBytes)
	_, err := newLoad(&Config{Workload: "uniform", Domain: long, Key: long, Keys: maxKeys})
	if err == nil || !strings.Contains(err.Error(), "more than 128 MiB") {
		t.Error(err)
	}
	l, err := newLoad(&Config{Workload: "uniform", Domain: "bench", Key: "user", Keys: 10})
	if err != nil {
		t.Fatal(err)
	}
	if most := (l.bytes/10 + len("00000")) * maxKeys; most > maxLoadBytes {
		t.Errorf("a million keys of the default names take %d bytes", most)
	}
	if _, err := newLoad(&Config{Workload: "hot", Domain: "\xff", Key: "k", Keys: 1}); err == nil {
		t.Error("a domain that is not UTF-8 was sent")
	}
}

func picks(p newPicker, seed uint64, count, from, to int) []int {
	pick := p(seed, count)
	var list []int
	for i := from; i < to; i++ {
		list = append(list, pick(uint64(i)))
	}
	return list
}

func TestPickersRepeat(t *testing.T) {
	for name, p := range map[string]newPicker{"uniform": uniform, "zipf": zipf} {
		all := picks(p, 7, 1000, 0, 500)
		if !slices.Equal(all, picks(p, 7, 1000, 0, 500)) {
			t.Errorf("%s: equal seeds, other picks", name)
		}
		// A worker makes some of the calls only.
		if !slices.Equal(all[300:], picks(p, 7, 1000, 300, 500)) {
			t.Errorf("%s: a pick depends on those before it", name)
		}
		if slices.Equal(all, picks(p, 8, 1000, 0, 500)) {
			t.Errorf("%s: other seed, equal picks", name)
		}
	}
	if got := picks(inTurn, 7, 3, 0, 5); !slices.Equal(got, []int{0, 1, 2, 0, 1}) {
		t.Errorf("in turn: %v", got)
	}
}

// shares returns how many of 100,000 calls each index gets.
func shares(p newPicker, count int) []int {
	n := make([]int, count)
	for _, i := range picks(p, 1, count, 0, 100_000) {
		n[i]++
	}
	return n
}

func TestUniform(t *testing.T) {
	for i, n := range shares(uniform, 10) {
		if n < 9_700 || n > 10_300 { // 3 standard deviations are 285
			t.Errorf("key %d: %d of 100,000 calls", i, n)
		}
	}
	if n := shares(uniform, 1); n[0] != 100_000 {
		t.Errorf("one key: %v", n)
	}
}

func TestZipf(t *testing.T) {
	n := shares(zipf, 100_000)
	sum := 0
	for _, c := range n[:100] {
		sum += c
	}
	// Of k keys the first has 1/H, H being the sum of 1/i^1.1 for i up to k: 7.42 for 100,000.
	if n[0] < 13_000 || n[0] > 14_000 || sum < 55_000 || sum > 60_000 || n[0] < n[1] || n[1] < n[9] || n[9] < n[99] {
		t.Errorf("the first of 100,000 keys has %d of 100,000 calls, the first hundred %d; %v", n[0], sum, n[:10])
	}
	if n := shares(zipf, 1); n[0] != 100_000 {
		t.Errorf("one key: %v", n)
	}
}
