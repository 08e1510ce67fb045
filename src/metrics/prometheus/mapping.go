package prometheus

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/statsd_exporter/pkg/mapper"
	"go.yaml.in/yaml/v2"
)

//go:embed builtin.yaml
var builtinYAML string

// errNoMapping is the error if a configured mapping file does not exist.
var errNoMapping = errors.New("there is no such file")

// loadMapping reads the mapping file at path. If path is empty, or if the file cannot be used, it returns the built-in
// mapping. It gives the reason to onWarn.
func loadMapping(path string, milliseconds bool, onWarn func(error)) (*mapper.MetricMapper, error) {
	if path != "" {
		m, err := readMapping(path)
		if err == nil {
			return m, nil
		}
		onWarn(fmt.Errorf("prometheus: mapping file %s: %w; the built-in mapping is used", path, err))
	}
	return builtinMapping(milliseconds)
}

func readMapping(path string) (*mapper.MetricMapper, error) {
	// Kubernetes mounts a directory in place of a file that does not exist.
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
		return nil, errNoMapping
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseMapping(string(text))
}

// builtinMapping returns the built-in mapping; milliseconds removes the scale of its timings.
func builtinMapping(milliseconds bool) (*mapper.MetricMapper, error) {
	m, err := parseMapping(builtinYAML)
	if err != nil {
		return nil, fmt.Errorf("prometheus: built-in mapping: %w", err)
	}
	for i := range m.Mappings {
		if milliseconds {
			m.Mappings[i].Scale = mapper.MaybeFloat64{}
		}
	}
	return m, nil
}

// parseMapping reads a mapping. It accepts the keys of statsd_exporter before 0.31 as well,
// and returns an error for options that would cause a panic later.
func parseMapping(text string) (*mapper.MetricMapper, error) {
	m := new(mapper.MetricMapper)
	if err := m.InitFromYAMLString(text); err != nil {
		modern, changed := modernizeMapping(text)
		if !changed {
			return nil, err
		}
		if err := m.InitFromYAMLString(modern); err != nil {
			return nil, fmt.Errorf("%w (lines are counted after timer_type, buckets, quantiles and match_metric_type were "+
				"brought up to date)", err)
		}
	}
	problems := checkObserverOptions("defaults", &m.Defaults.HistogramOptions, &m.Defaults.SummaryOptions)
	for i := range m.Mappings {
		at := &m.Mappings[i]
		problems = append(problems, checkObserverOptions(fmt.Sprintf("mapping %d (%s)", i+1, at.Match), at.HistogramOptions,
			at.SummaryOptions)...)
	}
	return m, errors.Join(problems...)
}

// Bounds on options of summaries, which need time and memory for each bucket and each place of the buffer.
const (
	maxAgeBuckets       = 100
	maxSummaryBufferCap = 100_000
)

// checkObserverOptions returns the options of histograms and summaries with which the client library
// would panic or hang. where is the place in the file, for the errors.
func checkObserverOptions(where string, h *mapper.HistogramOptions, s *mapper.SummaryOptions) (problems []error) {
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: "+format, append([]any{where}, args...)...))
	}
	if h != nil {
		for i := 1; i < len(h.Buckets); i++ {
			if !(h.Buckets[i-1] < h.Buckets[i]) { // This form of the comparison refuses NaN, too.
				problem("buckets must grow, but %v is followed by %v", h.Buckets[i-1], h.Buckets[i])
			}
		}
	}
	if s == nil {
		return problems
	}
	for _, q := range s.Quantiles {
		if !(q.Quantile >= 0 && q.Quantile <= 1 && q.Error >= 0 && q.Error <= 1) {
			problem("quantile %v with error %v: both must be between 0 and 1", q.Quantile, q.Error)
		}
	}
	buckets := cmp.Or(s.AgeBuckets, prometheus.DefAgeBuckets)
	if age := cmp.Or(s.MaxAge, prometheus.DefMaxAge); age < time.Duration(min(buckets, maxAgeBuckets))*time.Second {
		problem("max_age %v is less than a second for each of %d age_buckets: write it with a unit, such as 10m",
			s.MaxAge, buckets)
	}
	if buckets > maxAgeBuckets {
		problem("age_buckets %d: write at most %d", s.AgeBuckets, maxAgeBuckets)
	}
	if s.BufCap > maxSummaryBufferCap {
		problem("buf_cap %d: write at most %d", s.BufCap, maxSummaryBufferCap)
	}
	return problems
}

// yamlMap is a mapping of YAML with its keys.
type yamlMap map[string]any

// modernizeMapping replaces the keys that statsd_exporter removed in 0.31, because mapping files for
// envoyproxy/ratelimit still use them. It returns false if text has none, or is not YAML.
func modernizeMapping(text string) (modern string, changed bool) {
	var file struct {
		Defaults yamlMap   `yaml:"defaults,omitempty"`
		Mappings []yamlMap `yaml:"mappings,omitempty"`
		Others   yamlMap   `yaml:",inline"`
	}
	if yaml.Unmarshal([]byte(text), &file) != nil {
		return "", false
	}
	for _, m := range append(file.Mappings, file.Defaults) {
		changed = m.modernizeKeys() || changed
	}
	out, err := yaml.Marshal(&file)
	return string(out), changed && err == nil
}

// modernizeKeys renames timer_type and its value in match_metric_type, and moves buckets and
// quantiles into their options. It returns whether it changed m, which may be nil.
func (m yamlMap) modernizeKeys() (changed bool) {
	if m["match_metric_type"] == "timer" {
		m["match_metric_type"], changed = "observer", true
	}
	if kind, found := m["timer_type"]; found {
		m["observer_type"], changed = kind, true
		delete(m, "timer_type")
	}
	for key, options := range map[string]string{"buckets": "histogram_options", "quantiles": "summary_options"} {
		value, found := m[key]
		if !found {
			continue
		}
		inner, _ := m[options].(map[any]any)
		if inner == nil {
			inner = make(map[any]any)
		}
		inner[key] = value
		m[options], changed = inner, true
		delete(m, key)
	}
	return changed
}
