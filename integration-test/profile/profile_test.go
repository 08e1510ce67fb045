package profile

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

var write = flag.Bool("write", false, "measure, and write the profile; takes two minutes")

const (
	repository = "../.."
	file       = repository + "/src/cmd/ratelimit/calls.pgo"
	module     = "ratelimit/"
)

// loads are the kinds of calls. Each is measured for as long as the others.
var loads = []struct {
	name    string
	backend string
	// command has the words of a program and its arguments. GRPC, RESP and KEYS stand for what they are called.
	command string
}{
	{"gRPC", "memory", "load GRPC --client lean --workload uniform KEYS"},
	{"gRPC, often the same keys", "memory", "load GRPC --client lean --workload zipf --in-flight 256 KEYS"},
	{"gRPC, as Envoy calls", "memory", "load GRPC --client grpc-go --fresh-headers --workload uniform KEYS"},
	{"gRPC, four descriptors", "memory", "load GRPC --client lean --workload multi KEYS"},
	{"gRPC, denied", "memory", "load GRPC --client lean --workload overlimit KEYS"},
	{"gRPC with Redis", "redis", "load GRPC --client lean --workload uniform KEYS"},
	{"gRPC with Redis, four descriptors", "redis", "load GRPC --client lean --workload multi KEYS"},
	{"RATELIMIT", "memory", "redis-benchmark -p RESP -c 50 -n 1000000000 -r 100000 -q RATELIMIT api user __rand_int__"},
	{
		"RATELIMIT, pipelined", "memory",
		"redis-benchmark -p RESP -c 50 -P 16 -n 1000000000 -r 100000 -q RATELIMIT api user __rand_int__",
	},
	{
		"CL.THROTTLE, pipelined", "memory",
		"redis-benchmark -p RESP -c 50 -P 16 -n 1000000000 -r 100000 -q CL.THROTTLE __rand_int__ 15 30 60",
	},
}

const rules = `domain: api
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: user, value: overlimit, rate_limit: {unit: day, requests_per_unit: 10}}
`

func TestMain(m *testing.M) { harness.RunTests(m, nil) }

func TestWriteProfile(t *testing.T) {
	if !*write {
		t.Skip("writes the profile with -write: make profile")
	}
	t.Setenv("CI", "true") // A missing program is a failure.
	benchmark := harness.Program(t, "redis-benchmark", "redis-tools")
	load, err := harness.BuiltLoad()
	if err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t, redistest.Options{})
	services := map[string]*harness.Service{
		"memory": startService(t, "BACKEND_TYPE=memory"),
		"redis":  startService(t, "BACKEND_TYPE=redis", "REDIS_URL="+redis.Addr),
	}
	merge := []string{"tool", "pprof", "-proto"}
	for i, l := range loads {
		fmt.Println(l.name)
		s := services[l.backend]
		_, respPort, err := net.SplitHostPort(s.Addrs["resp"])
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(strings.NewReplacer(
			"GRPC", "--address "+s.Addrs["grpc"], "RESP", respPort, "KEYS",
			"--domain api --key user --keys 100000 --connections 2 --duration 1h").Replace(l.command))
		words[0] = map[string]string{"load": load, "redis-benchmark": benchmark}[words[0]]
		profile := filepath.Join(t.TempDir(), fmt.Sprint(i))
		measure(t, s.Addrs["debug"], profile, words)
		merge = append(merge, profile)
	}
	out, err := exec.Command("go", merge...).Output()
	if err != nil {
		t.Fatalf("go tool pprof: %v", err)
	}
	if err := os.WriteFile(file, out, 0o644); err != nil {
		t.Fatal(err)
	}
}

func startService(t *testing.T, env ...string) *harness.Service {
	t.Helper()
	s := harness.NewService(t, append([]string{"RESP_HOST=127.0.0.1", "RESP_PORT=0", "DISABLE_STATS=true"}, env...)...)
	s.WriteRules(t, "rules.yaml", rules)
	s.Start(t, "grpc", "resp", "debug")
	return s
}

// measure writes a CPU profile of the service while a program runs.
func measure(t *testing.T, debug, path string, program []string) {
	t.Helper()
	p := &harness.Process{Path: program[0], Args: program[1:], Log: path + ".log"}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	time.Sleep(time.Second) // The first calls create counters.
	resp, err := http.Get("http://" + debug + "/debug/pprof/profile?seconds=8")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	if err := p.Exited(); err != nil {
		t.Fatal(err)
	}
}

// A profile of functions that no longer exist does nothing.
func TestProfileIsCurrent(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0",
		"-sample_index=samples", file).Output()
	if err != nil {
		t.Fatalf("go tool pprof: %v", err)
	}
	exists := functions(t)
	// A line ends with the function: its own samples, its share, the sum, samples with those of callees, their share.
	line := regexp.MustCompile(`(?m)^ *(\d+) .* ` + module + `(\S+?)(?:\.func\d\S*)?(?: \(inline\))?$`)
	found, all := 0, 0
	var missing []string
	for _, m := range line.FindAllStringSubmatch(string(out), -1) {
		samples := 0
		if _, err := fmt.Sscan(m[1], &samples); err != nil {
			t.Fatal(err)
		}
		all += samples
		if exists[strings.ReplaceAll(m[2], "[...]", "")] {
			found += samples
		} else if samples > 0 {
			missing = append(missing, m[2])
		}
	}
	if all < 1000 || found < all*9/10 {
		t.Errorf("of %d samples in this project's functions, %d are in functions that exist: run make profile on a machine "+
			"without other work; missing: %s", all, found, strings.Join(missing, " "))
	}
}

// functions returns the functions of src as a profile names them, such as src/limiter.(*Limiter).Check.
func functions(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	err := filepath.WalkDir(filepath.Join(repository, "src"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(repository, filepath.Dir(path))
		for _, d := range source.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				names[filepath.ToSlash(dir)+"."+receiver(f)+f.Name.Name] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// receiver returns the part of a method's name that names its type, such as "(*Limiter)."; "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	format, typ := "%s.", f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		format, typ = "(*%s).", star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	name, _ := typ.(*ast.Ident)
	return fmt.Sprintf(format, name)
}
