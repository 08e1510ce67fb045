package filerules

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules/compile"
)

func BenchmarkLoad10000(b *testing.B) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  - key: path\n    value: /v1/items/%d\n    rate_limit:\n      unit: minute\n      "+
			"requests_per_unit: %d\n", i, i+1)
	}
	files := []File{{Name: "a.yaml", Data: []byte(text.String())}}
	b.ReportAllocs()
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if _, warnings, err := Load(files, compile.Options{}); err != nil || len(warnings) > 0 {
			b.Fatal(warnings, err)
		}
	}
}

// BenchmarkLoadPaths is 10,000 limits, half of them charged with those above.
func BenchmarkLoadPaths(b *testing.B) {
	var text strings.Builder
	text.WriteString("domain: d\ncharge: path\ndescriptors:\n")
	for i := range 2500 {
		fmt.Fprintf(&text, "- key: tenant\n  value: t%d\n  rate_limits:\n  - {unit: second, requests_per_unit: 1}\n  - "+
			"{unit: day, requests_per_unit: 5}\n", i)
		text.WriteString("  descriptors:\n  - {key: path, rate_limit: {unit: minute, requests_per_unit: 2}}\n  - {key: " +
			"user, rate_limit: {unit: minute, requests_per_unit: 2}}\n")
	}
	files := []File{{Name: "a.yaml", Data: []byte(text.String())}}
	b.ReportAllocs()
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if set, warnings, err := Load(files, compile.Options{}); err != nil || len(warnings) > 0 ||
			len(set.Rules()) != 10_000 {
			b.Fatal(warnings, err)
		}
	}
}

// BenchmarkLoadDoubled loads n and 2n rules in turns. Its x/doubling is how many times as
// much CPU the second takes; 2.2 at most.
func BenchmarkLoadDoubled(b *testing.B) {
	const n = 10_000
	const limit = "rate_limit: {unit: minute, requests_per_unit: 5}"
	file := func(domain string, from, to int, format string) File {
		var text strings.Builder
		fmt.Fprintf(&text, "domain: %s\ndescriptors:\n", domain)
		for i := from; i < to; i++ {
			fmt.Fprintf(&text, format, i)
		}
		return File{Name: domain + ".yaml", Data: []byte(text.String())}
	}
	split := func(n, size int, format string) (files []File) {
		for from := 0; from < n; from += size {
			files = append(files, file(fmt.Sprintf("d%d", from), from, from+size, format))
		}
		return files
	}
	const value = "- {key: user, value: u%d, " + limit + "}\n"
	for _, bench := range []struct {
		name  string
		files func(n int) []File
	}{
		{"values of a key", func(n int) []File { return split(n, n, value) }},
		{"keys", func(n int) []File { return split(n, n, "- {key: user%d, "+limit+"}\n") }},
		{"levels below others", func(n int) []File {
			return split(n, n, "- {key: user, value: u%d, descriptors: [{key: path, "+limit+"}]}\n")
		}},
		{"domains", func(n int) []File { return split(n, 10, value) }},
		{"size of each file", func(n int) []File { return split(n, n/10, value) }},
		{"ordered list", func(n int) []File {
			f := file("d", 0, n, "- {match: {user: u%d}, "+limit+"}\n")
			f.Data = bytes.Replace(f.Data, []byte("descriptors:"), []byte("rules:"), 1)
			return []File{f}
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var took [2]time.Duration
			files := [2][]File{bench.files(n), bench.files(2 * n)}
			for b.Loop() {
				for i := range files {
					start := cpuTime(b)
					if set, _, err := Load(files[i], compile.Options{}); err != nil || len(set.Rules()) != n<<i {
						b.Fatal(err)
					}
					took[i] += cpuTime(b) - start
				}
			}
			b.ReportMetric(float64(took[1])/float64(took[0]), "x/doubling")
		})
	}
}
