package prometheus

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/src/metrics"
	"ratelimit/testbed/testfiles"
)

// A mapping file is replaced by the built-in mapping, or scrapes work with it whatever it maps to.
func FuzzMapping(f *testing.F) {
	f.Add(builtinYAML)
	for _, text := range []string{
		"", "mappings: []", "mappings: [", "- a", "mappings:\n- {match: a.*, name: x, labels: {y: $1}}\n",
		"defaults: {timer_type: histogram, buckets: [1, 2], quantiles: [{quantile: 0.5, error: 0.1}]}\nmappings:\n- " +
			"{match: 'a\\.(.*)', match_type: regex, name: \"$1\"}\n",
		"mappings:\n- {match: a.hits, name: a_hits, action: drop}\n- {match: '*.*', name: \"${1}_$2\", observer_type: " +
			"summary, summary_options: {max_age: 1s, age_buckets: 7}}\n",
		"defaults: {observer_type: histogram, histogram_options: {buckets: [.nan, 1], native_histogram_bucket_factor: " +
			"1.1}}\nmappings: []\n",
		"mappings:\n- {match: a.*, name: le, labels: {le: x, __name__: y}, scale: .inf, ttl: 1s}\n",
		"defaults: {max_age: -1s, buckets: null}\nmappings:\n- null\n",
	} {
		f.Add(text)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		path := filepath.Join(dir, "mapping.yaml")
		testfiles.Write(t, path, text)
		var v values
		for i, name := range []string{
			"a.x.hits", "a.hits", "a.é", "b", "ratelimit.service.rate_limit.d.k_v.over_limit",
			"..", "",
		} {
			v.set(metrics.KindCounter, name, int64(i+1))
			v.set(metrics.KindGauge, name+".g", int64(i+1))
		}
		e, err := New(Config{Registry: v.source(), MappingFile: path, OnWarn: func(err error) {
			if strings.Contains(err.Error(), "\x00") || errors.Is(err, os.ErrNotExist) {
				t.Errorf("%q: %v", text, err)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a.x", "a.x.hits", "t.t"} {
			e.ObserveTimings(name, 1, 3*time.Millisecond)
		}
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), "ratelimit_build_info") {
			t.Errorf("%q: status %d: %s", text, w.Code, w.Body)
		}
	})
}
