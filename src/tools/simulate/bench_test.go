package simulate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/testbed/limitertest"
)

// recording returns n requests at a fixed interval, most of them from a few users.
func recording(n int, every time.Duration) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, 99_999)
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"at":%q,"request":{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"%d"}]}]}}`+"\n",
			(time.Duration(i) * every).String(), zipf.Uint64())
	}
	return b.Bytes()
}

const trafficRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 20}
`

// BenchmarkRun reports lines a second.
func BenchmarkRun(b *testing.B) {
	const lines = 100_000
	for _, tt := range []struct {
		name  string
		input []byte
	}{
		{"users=100k", recording(lines, 30*time.Second)},
		{"texts=different", differing(lines)},
	} {
		b.Run(tt.name, func(b *testing.B) {
			set := load(b, trafficRules)
			b.SetBytes(int64(len(tt.input)))
			b.ReportAllocs()
			for b.Loop() {
				store := limitertest.Store(b, memory.Config{})
				cfg := Config{Rules: set, Backend: store, In: bytes.NewReader(tt.input), Name: "stdin", Out: io.Discard}
				if _, err := Run(context.Background(), cfg); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

// differing returns a recording without two equal requests.
func differing(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(
			&b, `{"at":"%ds","request":{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"%d"}]}]}}`+"\n", i, i)
	}
	return b.Bytes()
}
