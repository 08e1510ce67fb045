package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/measured"
	"ratelimit/testbed/testfiles"
)

var update = flag.Bool("update", false, "write testdata and docs/performance.svg anew")

// result is one of a server that spent cpu µs on a call, Redis' part not
// included.
func result(cpu, redis float64, p50, p99 int64) *bench.Result {
	r := &bench.Result{
		Requests: 1000, Answers: map[string]uint64{"OK": 1000}, Latency: bench.Latency{P50: p50, P99: p99},
		CPU: map[string]bench.CPU{serverName: {PerRequest: cpu}},
	}
	if redis > 0 {
		r.CPU[redisName] = bench.CPU{PerRequest: redis}
	}
	return r
}

// sample is a report in which each kind of row comes up.
func sample() *report {
	r := newReport(
		&options{
			rounds: 3, duration: 4e9, warmup: 1e9, gogc: 400, nullWorkers: 16, engines: []string{h2, grpcGo},
			crowd: 10_000, crowdRate: 20_000,
		},
		measured.Machine{
			Commit: "0123456789ab", Modified: true, Go: "go1.26.0", CPU: "A <fast> CPU & more", Cores: 2,
			Date: "2026-01-02",
		},
		&selection{cases: ofEngines(cases, []string{h2, grpcGo}), tails: tailStores, crowds: []string{h2, grpcGo}})
	r.Redis = "7.0.15"
	for i, c := range r.Cases {
		redis := 0.0
		if c.Store != inMemory {
			redis = 4
		}
		for round := 1; round <= 3; round++ {
			p := pair{
				Round: round, Empty: result(10, 0, 100, 1000),
				Ours: result(1+float64(i)/2+float64(round)/10, redis, 110, int64(900+100*round)),
			}
			switch {
			case i == 1 && round == 2: // an outlier
				p.Ours = result(40, 0, 500, 5000)
			case i == 4 && round == 3, i == 21:
				p.Problem = "3 of 1000 calls failed, the first with UNAVAILABLE: no"
			}
			c.add(p)
		}
	}
	for i, tr := range r.Tails {
		for round := 1; round <= 3; round++ {
			tr.add(tailRound{Round: round, Rate: 1000 * float64(round), Results: []*bench.Result{
				result(1, 0, 100, int64(900+100*i+10*round)), result(2, 0, 200, 1000),
			}})
		}
	}
	r.Tails[2].add(tailRound{Round: 4, Problem: "saturated: no"})
	for i, c := range r.Crowds {
		if i == 1 {
			c.add(crowdRound{Round: 1, Problem: "idle: no"})
			continue
		}
		for round := 1; round <= 3; round++ {
			loaded := result(float64(round), 0, 50, 500)
			loaded.OpenLoop = &bench.OpenLoop{Unsent: uint64(round)}
			burst := result(float64(round)/2, 0, 500, 5000)
			burst.Rate = 900_000
			c.add(crowdRound{Round: round, IdleKiB: float64(5 + round), Loaded: loaded, Burst: burst})
		}
	}
	return r
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := testfiles.Read(t, file)
	if !bytes.Equal(got, want) {
		t.Errorf("not as in %s (-update writes it anew):\n%s", file, got)
	}
}

func TestGolden(t *testing.T) {
	r := sample()
	text, err := measured.Document(docFile, document, r)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/performance.md", text)
	var table bytes.Buffer
	if err := r.writeTables(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/table.txt", table.Bytes())
	svg, err := r.plot()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/performance.svg", svg)
	if !r.wentWrong() {
		t.Error("nothing went wrong")
	}
}

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{7}, spread{7, 7, 7}},
		{[]float64{9, 1}, spread{5, 1, 9}},
		{[]float64{3, 1, 2}, spread{2, 1, 3}},
		{[]float64{1, 100, 3, 2}, spread{2.5, 1, 100}},
		{[]float64{5, 5, 5, 1, 9}, spread{5, 1, 9}},
	} {
		given := slices.Clone(tt.values)
		if got := spreadOf(given); got != tt.want || !slices.Equal(given, tt.values) {
			t.Errorf("%v: %v, want %v; left as %v", tt.values, got, tt.want, given)
		}
	}
}

// The ratio is the median of the rounds' ratios, not the ratio of medians, and
// a round in which something went wrong does not count.
func TestRatios(t *testing.T) {
	var c caseReport
	c.add(pair{Problem: "no", Ours: result(1, 0, 1, 1)})
	if c.CPU != nil || c.problem() != "round 0: no" {
		t.Errorf("%+v", c)
	}
	for _, p := range []pair{
		{Empty: result(10, 0, 10, 100), Ours: result(10, 2, 20, 150)},  // 1.2, 2, 1.5
		{Empty: result(40, 0, 20, 400), Ours: result(78, 2, 20, 200)},  // 2, 1, 0.5
		{Empty: result(20, 0, 10, 100), Ours: result(26, 4, 15, 1000)}, // 1.5, 1.5, 10
	} {
		c.add(p)
	}
	about := func(s *spread, median, lowest, highest float64) bool {
		return math.Abs(s.Median-median)+math.Abs(s.Lowest-lowest)+math.Abs(s.Highest-highest) < 1e-9
	}
	if !about(c.CPU, 1.5, 1.2, 2) || !about(c.P50, 1.5, 1, 2) || !about(c.P99, 1.5, 0.5, 10) {
		t.Errorf("%v, %v, %v", c.CPU, c.P50, c.P99)
	}
	if *c.Costs != (costs{Ours: 30, Redis: 2, Empty: 20}) {
		t.Errorf("%+v", c.Costs)
	}
	c.add(pair{Round: 5, Problem: "again"})
	if got := c.problem(); got != "round 0: no (and in 1 more)" {
		t.Error(got)
	}
}

func TestTarget(t *testing.T) {
	for _, tt := range []struct {
		target, ratio float64
		want          string
	}{
		{0, 9, ""},
		{1.25, 1, "≤ 1.25, met"},
		{1.25, 1.2549, "≤ 1.25, met"}, // it is shown as 1.25
		{1.25, 1.256, "≤ 1.25, missed"},
	} {
		c := caseReport{testCase: testCase{Target: tt.target}, CPU: &spread{Median: tt.ratio}}
		if got := c.target(); got != tt.want {
			t.Errorf("%v of %v: %q, want %q", tt.ratio, tt.target, got, tt.want)
		}
	}
}

func TestCheck(t *testing.T) {
	processes := []bench.Process{{Name: serverName, PID: 1}, {Name: redisName, PID: 2}}
	for _, tt := range []struct {
		name string
		set  func(*bench.Result)
		want string
	}{
		{"good", func(*bench.Result) {}, ""},
		{
			"failed", func(r *bench.Result) { r.Errors, r.FirstError = map[string]uint64{"A": 2, "B": 1}, "A: why" },
			"3 of 1000 calls failed, the first with A: why",
		},
		{"over", func(r *bench.Result) { r.Answers["OVER_LIMIT"] = 1 }, "1 of 1000 calls were answered OVER_LIMIT, not OK"},
		{"unknown", func(r *bench.Result) { r.Answers["UNKNOWN"] = 5 }, "5 of 1000 calls were answered UNKNOWN, not OK"},
		{"none", func(r *bench.Result) { r.Requests = 0 }, "no call was made"},
		{"no Redis", func(r *bench.Result) { delete(r.CPU, redisName) }, "the CPU time of redis is unknown"},
		{
			"no time", func(r *bench.Result) { r.CPU[serverName], r.CPU[redisName] = bench.CPU{}, bench.CPU{} },
			"it took no time that could be measured",
		},
		{"no percentile", func(r *bench.Result) { r.Latency.P50 = 0 }, "it took no time that could be measured"},
		{"stopped", func(r *bench.Result) { r.Interrupted = true }, "interrupted"},
	} {
		r := result(10, 1, 100, 1000)
		tt.set(r)
		got := ""
		if err := check(r, "OK", processes); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if check(nil, "OK", nil) == nil {
		t.Error("nothing is a good result")
	}
}

// elements are the names of those in a document, which must be well formed and
// can do nothing but be looked at.
func elements(t *testing.T, svg []byte) (names []string, text string) {
	t.Helper()
	if len(svg) > 8<<10 {
		t.Errorf("%d bytes", len(svg))
	}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return names, text
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			names = append(names, e.Name.Local)
			if !slices.Contains([]string{"svg", "title", "style", "rect", "g", "text"}, e.Name.Local) {
				t.Errorf("there is a <%s>", e.Name.Local)
			}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("<%s> has %s", e.Name.Local, a.Name.Local)
				}
			}
		case xml.CharData:
			text += string(e) + "\n"
		case xml.Directive, xml.ProcInst:
			t.Errorf("there is a %T", e)
		}
	}
}

// docs/performance.svg is drawn from the table of docs/performance.md, and the README says in words what it shows.
func TestPlot(t *testing.T) {
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := testfiles.Read(t, filepath.Join(root, docFile))
	ratios := make(map[store]float64)
	for _, s := range []store{inRedis, inLeases, inMemory} {
		row := regexp.MustCompile(`\n\| ` + strings.Replace(plotCase(s), "s, 2", `s \| 2`, 1) + ` \| ([\d.]+) \|`)
		m := row.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s: no row %s", docFile, row)
		}
		if ratios[s], err = strconv.ParseFloat(string(m[1]), 64); err != nil {
			t.Fatal(err)
		}
	}
	svg, err := drawPlot(ratios)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join(root, plotFile), svg)
	names, words := elements(t, svg)
	if names[0] != "svg" || strings.Contains(words, "url(") || strings.Contains(words, "@import") {
		t.Errorf("the plot begins with <%s>, or fetches something", names[0])
	}
	readme := testfiles.Read(t, filepath.Join(root, "README.md"))
	alt := fmt.Sprintf("about %d times that of an empty gRPC server, this service %.2f times on Redis and %.2f times in memory",
		upstream, ratios[inRedis], ratios[inMemory])
	if !strings.Contains(string(readme), alt) {
		t.Errorf("README.md does not say %q", alt)
	}
	if ratios[inRedis]*20 > upstream && strings.Contains(string(readme), "a twentieth of the CPU time") {
		t.Errorf("README.md says a twentieth, and it is %.2f of %d", ratios[inRedis], upstream)
	}
}

func TestWriteDocs(t *testing.T) {
	root := t.TempDir()
	if err := sample().writeDocs(root); err == nil {
		t.Error("there is no docs to write to")
	}
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := sample().writeDocs(root); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{docFile, plotFile} {
		if data, err := os.ReadFile(filepath.Join(root, file)); err != nil || len(data) == 0 {
			t.Errorf("%s: %d bytes, %v", file, len(data), err)
		}
	}
}

// docs/performance.md has every case, and the words of the template.
func TestDocument(t *testing.T) {
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := testfiles.Read(t, filepath.Join(root, docFile))
	for _, c := range cases {
		if row := "\n| " + c.Name + " | " + c.shape() + " | "; !strings.Contains(string(text), row) {
			t.Errorf("%s has no row for %s", docFile, c.title())
		}
	}
	for line := range strings.Lines(document) {
		if !strings.Contains(line, "{{") && !strings.Contains(string(text), "\n"+line) &&
			!strings.HasPrefix(string(text), line) {
			t.Errorf("%s is not what the template makes: no line %q", docFile, line)
		}
	}
}
