package limiter_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

// detailedRule is counted under names with request values.
const detailedRule = `
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 1000000000}
`

// enforcedRule is like gold, and enforced for half of its counters.
const enforcedRule = `
  - key: part
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1, enforce_percent: 50}
`

// wildcardRules are a hundred wildcards on one level.
func wildcardRules() string {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "  - {key: wild, value: \"/%d/*/end\", rate_limit: {unit: minute, requests_per_unit: 1000000000}}\n",
			i)
	}
	return b.String()
}

// BenchmarkCheck is a whole decision over memory, counted, on real time, for
// one and for several callers.
func BenchmarkCheck(b *testing.B) {
	for _, tt := range []struct {
		name   string
		more   string // rules beside testRules
		ask    string
		escape bool
	}{
		{"descriptors=1", "", "gold=x", false},
		{"descriptors=4", "", "gold=x silver=x trial=x path=/pay,user=x", false},
		{"descriptors=4,escaped", "", "gold=x silver=x trial=x path=/pay,user=x", true},
		{"descriptors=16", "", strings.Repeat("gold=x silver=x trial=x path=/pay,user=x ", 4), false},
		{"wildcards=100", wildcardRules(), "wild=/99/x/end", false},
		{"detailed", detailedRule, "detailed=x", false},
		{"unmatched", "", "nobody=x", false},
		{"enforced=50%", enforcedRule, "part=user-123456", false},
	} {
		counters := metrics.New(metrics.Config{})
		l := start(b, limiter.Config{Recorders: []limiter.Recorder{counters}, EscapeKeys: tt.escape})
		set := load(b, testRules+tt.more)
		counters.UseRules(set)
		l.UseRules(set)
		b.Run(tt.name, func(b *testing.B) {
			req, a := parse(tt.ask), new(limiter.Answer)
			req.Now = time.Time{}
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Check(b.Context(), req, a); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(tt.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				req, a := parse(tt.ask), new(limiter.Answer)
				req.Now = time.Time{}
				for pb.Next() {
					if err := l.Check(b.Context(), req, a); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkCheckManyKeys spreads requests over 100,000 values of one key.
func BenchmarkCheckManyKeys(b *testing.B) {
	l := start(b, limiter.Config{})
	const keys = 100_000
	values := make([][]byte, keys)
	for i := range values {
		values[i] = fmt.Appendf(nil, "user-%d", i)
	}
	req, a := parse("gold=x"), new(limiter.Answer)
	req.Now = time.Time{}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 7919) % keys
		req.Descriptors[0].Entries[0].Value = values[i]
		if err := l.Check(b.Context(), req, a); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheckDomains asks one of many domains, or all in turn, where the processor has neither their rules nor their
// counters in its cache.
func BenchmarkCheckDomains(b *testing.B) {
	for _, domains := range []int{10, 10_000} {
		var files []filerules.File
		for name, text := range testfiles.Fleet(domains, 40) {
			files = append(files, filerules.File{Name: name, Data: text})
		}
		set := limitertest.Load(b, files)
		for _, step := range []int{0, 7919} {
			l := start(b, limiter.Config{})
			l.UseRules(set)
			req, a := parse("path=/v1/items/7"), new(limiter.Answer)
			req.Now = time.Time{}
			b.Run(fmt.Sprintf("domains=%d,in turn=%v", domains, step > 0), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i = (i + step) % domains
					req.Domain = append(req.Domain[:0], set.Domains()[i].Name...)
					if err := l.Check(b.Context(), req, a); err != nil || a.Domain == nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkCheckHolds opens a hold and releases it: two requests.
func BenchmarkCheckHolds(b *testing.B) {
	l := start(b, limiter.Config{})
	l.UseRules(load(b, "domain: d\ndescriptors: [{key: user, rate_limit: {algorithm: concurrency, requests_per_unit: "+
		"1000, hold: 1s, hold_id: id}}]"))
	take, release, a := parse("user=x,id=0"), parse("user=x,id=0,hold=release"), new(limiter.Answer)
	take.Now, release.Now = time.Time{}, time.Time{}
	id := make([]byte, 8)
	take.Descriptors[0].Entries[1].Value, release.Descriptors[0].Entries[1].Value = id, id
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		binary.LittleEndian.PutUint64(id, n)
		if err := l.Check(b.Context(), take, a); err != nil || a.Over {
			b.Fatal(err, a.Over)
		}
		if err := l.Check(b.Context(), release, a); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheckMany decides requests of one descriptor on other counters, in one batch and one after the other.
// ns/request is the time for each of them.
func BenchmarkCheckMany(b *testing.B) {
	for _, n := range []int{1, 32, 256} {
		l := start(b, limiter.Config{})
		requests, answers := make([]*limiter.Request, n), make([]limiter.Answer, n)
		for i := range requests {
			requests[i] = parse(fmt.Sprintf("gold=%d", i))
			requests[i].Now = time.Time{}
		}
		perRequest := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/request")
		}
		b.Run(fmt.Sprintf("requests=%d/CheckMany", n), func(b *testing.B) {
			m := new(limiter.Many)
			b.ReportAllocs()
			for b.Loop() {
				for _, req := range requests {
					item := m.Add()
					item.Request.Domain, item.Request.Descriptors = req.Domain, append(item.Request.Descriptors, req.Descriptors...)
				}
				l.CheckMany(b.Context(), m)
				m.Reset(16)
			}
			perRequest(b)
		})
		b.Run(fmt.Sprintf("requests=%d/Check", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for i, req := range requests {
					if err := l.Check(b.Context(), req, &answers[i]); err != nil {
						b.Fatal(err)
					}
					answers[i].Reset(16)
				}
			}
			perRequest(b)
		})
	}
}

// BenchmarkCheckLargeGroup is the largest request: 1,000 descriptors with 20 limits each, all of which stand or fall
// together and are on new counters. As a front end does, it drops the memory of the Answer afterwards.
func BenchmarkCheckLargeGroup(b *testing.B) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n- key: g\n  on_reject: none\n  rate_limits:\n")
	for i := range 20 {
		fmt.Fprintf(&text, "  - {period: %dh, requests_per_unit: 1000000000}\n", i+1)
	}
	counters := metrics.New(metrics.Config{})
	store := limitertest.Store(b, memory.Config{MaxBytes: 100 << 20, KeepNames: true})
	l := start(b, limiter.Config{Backend: store, ChargeAllOrNothing: true, Recorders: []limiter.Recorder{counters}})
	set := load(b, text.String())
	counters.UseRules(set)
	l.UseRules(set)
	req := parse(strings.Repeat("g=value-of-8 ", 1000))
	req.Now = time.Time{}
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range req.Descriptors {
			n++
			req.Descriptors[i].Entries[0].Value = fmt.Appendf(req.Descriptors[i].Entries[0].Value[:0], "%012d", n)
		}
		a := new(limiter.Answer)
		if err := l.Check(b.Context(), req, a); err != nil || a.Over {
			b.Fatal(err, a.Over)
		}
	}
}
