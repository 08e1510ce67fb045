package integration

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/harness"
)

const tenantRules = `domain: tenants
descriptors:
  - {key: tenant, values_from: banned.txt.gz, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: tenant, limits_from: tenants.csv, rate_limit: {unit: year}}
`

// dataStep changes files, and wants limits of tenants: -1 stands for none, and the log to have a text.
type dataStep struct {
	files map[string]string
	want  map[string]int
	log   string
}

var dataSteps = []dataStep{
	{
		map[string]string{
			"a.yaml": tenantRules, "banned.txt.gz": "mallory\n",
			"tenants.csv": "tenant,limit\nacme,500\nfree,unlimited\n",
		},
		map[string]int{"acme": 500, "mallory": 0, "free": -1, "x": -1},
		"",
	},
	{
		map[string]string{"tenants.csv": "acme,600\nx,7\n"},
		map[string]int{"acme": 600, "x": 7, "mallory": 0, "free": -1},
		`tenants.csv: 1 added (\"x\" 7), 1 removed (\"free\" unlimited), 1 raised (\"acme\" 500 -> 600)`,
	},
	{
		map[string]string{"tenants.csv": "acme,700\nx,many\n"},
		map[string]int{"acme": 600, "x": 7},
		"tenants.csv:2:3: requests_per_unit is not a whole number: ",
	},
	// tenants.csv is still bad
	{map[string]string{"banned.txt.gz": "x\nmallory\n"}, map[string]int{"acme": 600, "x": 7, "mallory": 0}, ""},
	{map[string]string{"tenants.csv": "acme,700\n"}, map[string]int{"acme": 700, "x": 0, "mallory": 0}, ""},
}

// check asks for each tenant, and returns what is not as wanted.
func (step dataStep) check(t *testing.T, s *service) error {
	t.Helper()
	for tenant, want := range step.want {
		_, answer := s.ask(t, "tenants", "tenant="+tenant)
		got := -1
		if limit := answer.GetStatuses()[0].GetCurrentLimit(); limit != nil {
			got = int(limit.GetRequestsPerUnit())
		}
		if got != want {
			return fmt.Errorf("the limit of %s is %d, want %d", tenant, got, want)
		}
	}
	if !strings.Contains(s.log(t), step.log) {
		return fmt.Errorf("the log does not have %q", step.log)
	}
	return nil
}

// dataContent returns a file as it is on disk: compressed if its name ends in .gz.
func dataContent(t testing.TB, name, text string) string {
	t.Helper()
	if !strings.HasSuffix(name, ".gz") {
		return text
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text)) // to memory
	_ = w.Close()
	return b.String()
}

// Data files are edited, broken and fixed, as files and in a ConfigMap, and the service follows.
func TestDataFiles(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"files", "ConfigMap"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newRuleDir(t)
			files := make(map[string]string)
			var s *service
			for i, step := range dataSteps {
				for name, text := range step.files {
					files[name] = dataContent(t, name, text)
					if kind == "files" {
						d.put(t, name, files[name])
					}
				}
				if kind == "ConfigMap" {
					swapConfigMap(t, d.files, i, files)
				}
				if s == nil {
					s = startService(t, d.env()...)
				}
				s.until(t, fmt.Sprintf("step %d is in force", i+1), func() error { return step.check(t, s) })
			}
		})
	}
}

// swapConfigMap replaces the files in dir as the kubelet does: a new directory, a renamed link ..data, and links to
// what is in it.
func swapConfigMap(t *testing.T, dir string, version int, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fresh := fmt.Sprintf("..2026_%d", version)
	must(os.Mkdir(filepath.Join(dir, fresh), 0o755))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(dir, fresh, name), []byte(text), 0o644))
		if version == 0 {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
		}
	}
	must(os.Symlink(fresh, filepath.Join(dir, "..data_tmp")))
	must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if version > 0 {
		must(os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2026_%d", version-1))))
	}
}

// BenchmarkNeighbourOfReload compares the latency of calls to one domain while nothing changes, while a file of a
// million lines that no rule names is replaced, and while one that a rule of another domain names is replaced as soon
// as the last one is in force. They take turns, so that other work on the machine slows all of them alike. It reports
// medians.
func BenchmarkNeighbourOfReload(b *testing.B) {
	const live = "domain: bench\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}\n"
	const other = "domain: other\ndescriptors:\n  - {key: tenant, values_from: named.txt, rate_limit: {unit: day, " +
		"requests_per_unit: 0}}\n"
	root := b.TempDir()
	args := startBenched(b, root, "memory", live, "")
	r := &replacer{root: root, replaced: make(map[string]int)}
	for n := range 2_000_000 {
		r.versions[n%2] = fmt.Appendf(r.versions[n%2], "tenant-%07d\n", n)
	}
	r.replace(b, "named.txt")
	reloads := r.reloads(b)
	r.replace(b, "other.yaml", other)
	r.awaitReload(b, reloads)
	type series struct{ p50, p99 []float64 }
	names := []string{"", "unnamed.txt", "named.txt"} // the file that is replaced in each turn; "" for none.
	latencies := make(map[string]*series)
	for b.Loop() {
		for _, name := range names {
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				r.keepReplacing(b, name, stop)
			}()
			l := latencyOf(b, args)
			close(stop)
			<-stopped
			if latencies[name] == nil {
				latencies[name] = new(series)
			}
			latencies[name].p50, latencies[name].p99 = append(latencies[name].p50, float64(l.P50)),
				append(latencies[name].p99, float64(l.P99))
		}
	}
	for i, label := range []string{"quiet", "unnamed", "named"} {
		s := latencies[names[i]]
		slices.Sort(s.p50)
		slices.Sort(s.p99)
		b.ReportMetric(s.p50[len(s.p50)/2], label+"-p50-µs")
		b.ReportMetric(s.p99[len(s.p99)/2], label+"-p99-µs")
	}
	slices.Sort(r.times)
	b.ReportMetric(float64(r.times[len(r.times)/2].Milliseconds()), "in-force-ms")
}

// replacer replaces files in root/config by other versions.
type replacer struct {
	root     string
	versions [2][]byte
	replaced map[string]int  // counts the replacements of each file.
	times    []time.Duration // how long it took until replaced files were in force.
}

// replace replaces a file by the next version, or by text.
func (r *replacer) replace(b *testing.B, name string, text ...string) {
	content := r.versions[r.replaced[name]%2]
	r.replaced[name]++
	if len(text) > 0 {
		content = []byte(text[0])
	}
	draft := filepath.Join(r.root, "draft")
	if err := os.WriteFile(draft, content, 0o644); err != nil {
		b.Error(err)
	}
	if err := os.Rename(draft, filepath.Join(r.root, "config", name)); err != nil {
		b.Error(err)
	}
}

// keepReplacing replaces a file again and again until stop is closed. It waits until named.txt is in force, and as long
// for another file.
func (r *replacer) keepReplacing(b *testing.B, name string, stop <-chan struct{}) {
	for name != "" {
		reloads, start := r.reloads(b), time.Now()
		r.replace(b, name)
		if name == "named.txt" {
			r.awaitReload(b, reloads)
			r.times = append(r.times, time.Since(start))
		} else if len(r.times) > 0 {
			time.Sleep(r.times[len(r.times)-1])
		} else {
			time.Sleep(time.Second)
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}

// reloads returns how often the service has reloaded its rules.
func (r *replacer) reloads(b *testing.B) int {
	text, err := os.ReadFile(filepath.Join(r.root, "log"))
	if err != nil {
		b.Error(err)
	}
	return bytes.Count(text, []byte("rules reloaded"))
}

func (r *replacer) awaitReload(b *testing.B, before int) {
	for deadline := time.Now().Add(time.Minute); r.reloads(b) == before; time.Sleep(250 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Error("a replaced file is not in force after a minute")
			return
		}
	}
}

// latencyOf sends 2,000 calls a second for eight seconds.
func latencyOf(b *testing.B, args []string) bench.Latency {
	b.Helper()
	path, err := harness.BuiltLoad()
	if err != nil {
		b.Fatal(err)
	}
	out, err := exec.Command(path, append([]string{
		"--json", "--client", "lean", "--workload", "uniform", "--keys", "1000", "--connections", "2", "--rate", "2000",
		"--warmup", "200ms", "--duration", "8s",
	}, args...)...).Output()
	var r bench.Result
	if err != nil || json.Unmarshal(out, &r) != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return r.Latency
}
