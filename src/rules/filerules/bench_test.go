package filerules

import (
	"os"
	"path/filepath"
	"testing"

	"ratelimit/src/metrics"
	"ratelimit/src/metrics/subjects"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/reload"
	"ratelimit/src/testbed/testfiles"
)

// BenchmarkFleet measures the steps of a reload of 10,000 files with 40 rules each.
func BenchmarkFleet(b *testing.B) {
	dir := b.TempDir()
	for name, text := range testfiles.Fleet(10_000, 40) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	read := func(b *testing.B) []reload.Part {
		files, _, err := Read(dir)
		if err != nil || len(files) != 10_000 {
			b.Fatal(len(files), err)
		}
		return files
	}
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			read(b)
		}
	})
	files := read(b)
	b.Run("first load", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			loader := reload.Loader{Format: loading.Format()}
			loader.Load(files, nil, new(reload.Result))
		}
	})
	loader := reload.Loader{Format: loading.Format()}
	var out reload.Result
	loader.Load(files, nil, &out)
	requests := 200
	changed := func(b *testing.B) reload.Result {
		requests++
		files[5000] = reload.Part{Name: files[5000].Name, Data: testfiles.FleetFile("tenant-05000", 40, requests)}
		var out reload.Result
		loader.Load(files, nil, &out)
		if out.Err != nil || out.Set == nil {
			b.Fatal(out.Err)
		}
		return out
	}
	b.Run("change of one file", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			changed(b)
		}
	})
	b.Run("figures", func(b *testing.B) {
		registry := metrics.New(metrics.Config{})
		tracker := subjects.New(100)
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			out := changed(b)
			b.StartTimer()
			registry.UseRules(out.Set)
			tracker.UseRules(out.Set)
		}
	})
}
