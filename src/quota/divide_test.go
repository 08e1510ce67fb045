package quota

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// results returns what divide gives to claims of (taken, want).
func results(available uint64, pairs ...[2]uint64) (got []uint64) {
	claims := make([]claim, len(pairs))
	for i, p := range pairs {
		claims[i] = claim{taken: p[0], want: p[1]}
	}
	divide(available, claims)
	for i := range claims {
		got = append(got, claims[i].got)
	}
	return got
}

func TestDivide(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		available uint64
		claims    [][2]uint64 // taken, want
		want      []uint64
	}{
		{0, nil, nil},
		{10, [][2]uint64{{0, 2}, {0, 9}, {2, 9}}, []uint64{2, 5, 3}},
		{100, [][2]uint64{{0, 10}, {0, 90}, {0, 300}}, []uint64{10, 45, 45}},
		{10, [][2]uint64{{0, 4}, {0, 6}}, []uint64{4, 6}},
		{0, [][2]uint64{{0, 4}, {0, 6}}, []uint64{0, 0}},
		{5, [][2]uint64{{0, 9}, {0, 9}}, []uint64{3, 2}},
		{5, [][2]uint64{{100, 9}, {0, 9}}, []uint64{0, 5}},
		{1 << 40, [][2]uint64{{0, 1 << 41}, {0, 1 << 41}}, []uint64{1 << 39, 1 << 39}},
	} {
		if got := results(tt.available, tt.claims...); !slices.Equal(got, tt.want) {
			t.Errorf("divide(%d, %v) = %v, want %v", tt.available, tt.claims, got, tt.want)
		}
	}
}

// divideSlowly gives one unit after the other to the claim that has the least.
func divideSlowly(available uint64, pairs [][2]uint64) []uint64 {
	got := make([]uint64, len(pairs))
	for ; available > 0; available-- {
		least := -1
		for i, p := range pairs {
			if got[i] < p[1] && (least < 0 || p[0]+got[i] < pairs[least][0]+got[least]) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		got[least]++
	}
	return got
}

func checkDivide(t *testing.T, available uint64, pairs [][2]uint64) {
	t.Helper()
	if got, want := results(available, pairs...), divideSlowly(available, pairs); !slices.Equal(got, want) {
		t.Errorf("divide(%d, %v) = %v, one by one %v", available, pairs, got, want)
	}
}

func TestDivideOneByOne(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		pairs := make([][2]uint64, 1+random.IntN(6))
		for i := range pairs {
			pairs[i] = [2]uint64{random.Uint64N(20), random.Uint64N(20)}
		}
		checkDivide(t, random.Uint64N(80), pairs)
	}
}

func FuzzDivide(f *testing.F) {
	f.Add(uint8(10), []byte{0, 2, 0, 9, 2, 9})
	f.Fuzz(func(t *testing.T, available uint8, bytes []byte) {
		var pairs [][2]uint64
		for pair := range slices.Chunk(bytes[:min(len(bytes), 40)], 2) {
			pairs = append(pairs, [2]uint64{uint64(pair[0]), uint64(pair[len(pair)-1])})
		}
		if len(pairs) > 0 {
			checkDivide(t, uint64(available), pairs)
		}
	})
}
