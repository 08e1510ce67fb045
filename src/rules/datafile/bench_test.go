package datafile

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// million returns a file of a million values, and the values.
func million(kind Kind) (data []byte, values [][]byte) {
	var b bytes.Buffer
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1_000_000 {
		v := fmt.Appendf(nil, "tenant-%07d", i)
		values = append(values, v)
		b.Write(v)
		if kind == Limits {
			fmt.Fprintf(&b, ",%d", 100*(1+r.IntN(1000)))
		}
		b.WriteByte('\n')
	}
	r.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
	// The values of requests are in a cache, because they have just been read. So the searches read them in order.
	var text []byte
	for i, v := range values {
		text = append(text, v...)
		values[i] = text[len(text)-len(v):]
	}
	return b.Bytes(), values
}

func BenchmarkParse(b *testing.B) {
	for _, kind := range []Kind{Values, Limits} {
		data, values := million(kind)
		b.Run(kind.String(), func(b *testing.B) {
			var t *Table
			for b.Loop() {
				var problems []Problem
				if t, problems = Parse("f", data, kind, new(Pacer)); problems != nil {
					b.Fatal(problems)
				}
			}
			b.ReportMetric(float64(cap(t.tags)+cap(t.cells)+cap(t.longValues))/float64(len(values)), "B/line")
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(time.Millisecond), "ms/op")
		})
	}
}

func BenchmarkFind(b *testing.B) {
	for _, kind := range []Kind{Values, Limits} {
		data, values := million(kind)
		t, _ := Parse("f", data, kind, new(Pacer))
		other := make([][]byte, len(values))
		byMap := make(map[string]uint32, len(values))
		for i, v := range values {
			other[i] = append(bytes.Clone(v), 'x')
			byMap[string(v)] = 1
		}
		b.Run(kind.String()+"/map", func(b *testing.B) {
			i := 0
			for b.Loop() {
				if byMap[string(values[i])] == 0 {
					b.Fatal()
				}
				if i++; i == len(values) {
					i = 0
				}
			}
		})
		for name, list := range map[string][][]byte{"present": values, "missing": other, "hot": values[:1000]} {
			b.Run(kind.String()+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if _, found := t.Find(list[i]); found == (name == "missing") {
						b.Fatal(found)
					}
					if i++; i == len(list) {
						i = 0
					}
				}
			})
		}
	}
}

// BenchmarkFindBesideMap searches for each of a million values in turn, in a table and in a Go map, which take turns
// every 20,000 searches, so that other work on the machine slows both alike. It reports medians of all turns.
func BenchmarkFindBesideMap(b *testing.B) {
	data, values := million(Values)
	t, _ := Parse("f", data, Values, new(Pacer))
	byMap := make(map[string]bool, len(values))
	for _, v := range values {
		byMap[string(v)] = true
	}
	const turn = 20_000
	searches := map[string]func(v []byte) bool{
		"table-ns": func(v []byte) bool { _, found := t.Find(v); return found },
		"map-ns":   func(v []byte) bool { return byMap[string(v)] },
	}
	times := make(map[string][]float64)
	for b.Loop() {
		for part := range slices.Chunk(values, turn) {
			for name, find := range searches {
				start := time.Now()
				for _, v := range part {
					if !find(v) {
						b.Fatalf("%s: %s is missing", name, v)
					}
				}
				times[name] = append(times[name], float64(time.Since(start))/turn)
			}
		}
	}
	for name, list := range times {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], name)
	}
	b.ReportMetric(0, "ns/op")
}
