package filerules

import (
	"path/filepath"
	"testing"
	"time"

	"ratelimit/src/metrics"
	"ratelimit/src/operator/subjects"
	"ratelimit/src/rules/reload"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// cpuTime returns the CPU time of the process so far, which other processes do not lengthen as they do the time on the
// wall.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	used, err := harness.CPUTime()
	if err != nil {
		b.Fatal(err)
	}
	return used
}

// measure runs step in a benchmark with the name, and reports the CPU time that it takes on all CPUs.
func measure(b *testing.B, name string, step func(b *testing.B)) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		start := cpuTime(b)
		for b.Loop() {
			step(b)
		}
		b.ReportMetric(float64((cpuTime(b)-start).Milliseconds())/float64(b.N), "cpu-ms/op")
	})
}

// BenchmarkFleet measures the steps of a reload of 10,000 files with 40 rules each.
func BenchmarkFleet(b *testing.B) {
	dir := b.TempDir()
	for name, text := range testfiles.Fleet(10_000, 40) {
		testfiles.Write(b, filepath.Join(dir, name), text)
	}
	read := func(b *testing.B) []reload.Part {
		files, _, err := Read(dir)
		if err != nil || len(files) != 10_000 {
			b.Fatal(len(files), err)
		}
		return files
	}
	measure(b, "read", func(b *testing.B) { read(b) })
	files := read(b)
	measure(b, "first load", func(*testing.B) {
		loader := reload.Loader{Format: Format()}
		loader.Load(files, nil, new(reload.Result))
	})
	loader := reload.Loader{Format: Format()}
	var out reload.Result
	requests := 200
	change := func(b *testing.B) {
		requests++
		files[5000] = reload.Part{Name: files[5000].Name, Data: testfiles.FleetFile("tenant-05000", 40, requests)}
		if loader.Load(files, nil, &out); out.Err != nil || out.Set == nil {
			b.Fatal(out.Err)
		}
	}
	change(b)
	measure(b, "change of one file", change)
	registry, tracker := metrics.New(metrics.Config{}), subjects.New(100)
	use := func() {
		registry.UseRules(out.Set)
		tracker.UseRules(out.Set)
	}
	use()
	measure(b, "change of one file with its figures", func(b *testing.B) {
		change(b)
		use()
	})
}
