package metrics

import (
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/testfiles"
)

// The service's TestFigures reads every part of figures.txt and writes the golden file. Without that, only
// a scrape would find a field that a line misspells. A part is read as a whole.
func TestFigureTable(t *testing.T) {
	t.Parallel()
	golden := testfiles.Read(t, filepath.Join("testdata", "figures.txt"))
	wild := strings.NewReplacer(`\$`, ".+", `\*`, ".+", `\.`, "[._]")
	shown := func(f Figure) bool {
		return slices.ContainsFunc([]string{f.StatName, f.MetricName}, func(name string) bool {
			return name != "" && regexp.MustCompile(wild.Replace(regexp.QuoteMeta(name))).Match(golden)
		})
	}
	for part, lines := range declarations() {
		// the flush of TestFigures reads statsd
		if !slices.ContainsFunc(lines, shown) && part != "client certificate" && part != "statsd" {
			t.Errorf("no test reads [%s]", part)
		}
	}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	type source struct {
		Loaded        time.Time
		InForce       bool
		Hash, Version string
	}
	if list := Figures("config in force", "", func() *source { return nil }); len(list) > 0 {
		t.Errorf("figures of nothing: %+v", list)
	}
	list := Figures("config in force", "", &source{time.UnixMilli(1500), true, "h", ""})
	if len(list) != 2 || list[0].ScaledValue() != 1.5 || list[1].Value != 1 ||
		!slices.Equal(list[1].Labels, []string{"hash", "h"}) {
		t.Errorf("without a version: %+v", list)
	}
	list = Figures("config in force", "", source{Hash: "h", Version: "v"})
	if len(list) != 2 || list[1].Value != 0 || !slices.Equal(list[1].Labels, []string{"hash", "h", "version", "v"}) {
		t.Errorf("with a version: %+v", list)
	}
	for value, want := range map[float64]int64{0: 0, 0.5714: 571, 12: 12_000, 1e30: 9_223_372_036_854_773_760} {
		f := declarations()["quota"][0].withValue(reflect.Value{}, "", "", reflect.ValueOf(value))
		if f.Value != want || f.Divisor != 1000 {
			t.Errorf("the fraction %v is %d/%d, want %d/1000", value, f.Value, f.Divisor, want)
		}
	}
	var calls Counter
	calls.Add(3)
	list = Figures("config", "", &struct{ AcceptedLoads, RefusedLoads *Counter }{&calls, new(Counter)})
	if stats := Stats(list); len(stats) != 2 ||
		stats[1] != (Stat{"ratelimit.service.config_load_success", KindCounter, 3}) {
		t.Errorf("counters: %+v", list)
	}
}
