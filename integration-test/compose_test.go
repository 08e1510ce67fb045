package integration

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

var composeFiles = []string{"docker-compose.yml", "docker-compose-example.yml"}

// compose is what our compose files use of the format; other keys are errors.
type compose struct {
	Services map[string]composeService `yaml:"services"`
}

type composeService struct {
	Profiles    []string              `yaml:"profiles"`
	Build       string                `yaml:"build"`
	Image       string                `yaml:"image"`
	Command     []string              `yaml:"command"`
	DependsOn   map[string]dependency `yaml:"depends_on"`
	Environment map[string]yaml.Node  `yaml:"environment"`
	Volumes     []mount               `yaml:"volumes"`
	Ports       []published           `yaml:"ports"`
	Healthcheck *healthcheck          `yaml:"healthcheck"`
	StopGrace   time.Duration         `yaml:"stop_grace_period"`
}

type dependency struct {
	Condition string `yaml:"condition"`
}

type healthcheck struct {
	Test     []string      `yaml:"test"`
	Interval time.Duration `yaml:"interval"`
	Timeout  time.Duration `yaml:"timeout"`
	Retries  int           `yaml:"retries"`
}

// mount is "source:target:ro".
type mount struct{ source, target, mode string }

func (m *mount) UnmarshalYAML(n *yaml.Node) error {
	part := strings.Split(n.Value, ":")
	if len(part) != 3 {
		return fmt.Errorf("line %d: mount %q, want source:target:mode", n.Line, n.Value)
	}
	*m = mount{part[0], part[1], part[2]}
	return nil
}

// published is "host port:container port", maybe with an address in front.
type published struct {
	ip              string
	host, container int
}

func (p *published) UnmarshalYAML(n *yaml.Node) error {
	part := strings.Split(n.Value, ":")
	if len(part) == 3 {
		if net.ParseIP(part[0]) == nil {
			return fmt.Errorf("line %d: %q is not an address", n.Line, part[0])
		}
		p.ip, part = part[0], part[1:]
	}
	if len(part) != 2 || n.Style == 0 { // unquoted, 22:22 is a number to YAML 1.1
		return fmt.Errorf("line %d: port %s, want a quoted \"host:container\"", n.Line, n.Value)
	}
	for i, to := range []*int{&p.host, &p.container} {
		port, err := strconv.ParseUint(part[i], 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("line %d: %q is not a port", n.Line, part[i])
		}
		*to = int(port)
	}
	return nil
}

// host returns where a path of the container is on this machine.
func (s composeService) host(path string) (string, bool) {
	for _, m := range s.Volumes {
		rest, ok := strings.CutPrefix(path, m.target)
		if ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(repository, m.source, rest), true
		}
	}
	return "", false
}

func (s composeService) containerPorts() []int {
	var ports []int
	for _, p := range s.Ports {
		ports = append(ports, p.container)
	}
	slices.Sort(ports)
	return ports
}

// eachCompose runs a test for each compose file.
func eachCompose(t *testing.T, test func(t *testing.T, path string, c compose)) {
	for _, path := range composeFiles {
		t.Run(path, func(t *testing.T) {
			var c compose
			d := yaml.NewDecoder(strings.NewReader(read(t, path)))
			d.KnownFields(true)
			if err := d.Decode(&c); err != nil {
				t.Fatal(err)
			}
			test(t, path, c)
		})
	}
}

// knownVariable is a setting of the service. The list is of the families that
// a compose file may want, so that a slip of the pen is found.
var knownVariable = regexp.MustCompile(
	`^(HOST|PORT|(GRPC|DEBUG)_(HOST|PORT)|LOG_(LEVEL|FORMAT)|BACKEND_TYPE|CONFIG_TYPE` +
		`|RUNTIME_(ROOT|SUBDIRECTORY|APPDIRECTORY|IGNOREDOTFILES)|USE_(STATSD|PROMETHEUS)|DISABLE_STATS|STATSD_(HOST|PORT)|SHUTDOWN_TIMEOUT|MEMORY_MAX_BYTES` +
		`|REDIS_PERSECOND|REDIS_(PERSECOND_)?(URL|TYPE|SOCKET_TYPE)|MEMCACHE_HOST_PORT)$`)

func TestComposeIsSound(t *testing.T) {
	eachCompose(t, func(t *testing.T, _ string, c compose) {
		hostPorts := make(map[int]string)
		for name, s := range c.Services {
			if s.Build != "" {
				if _, err := os.Stat(filepath.Join(repository, s.Build, "Dockerfile")); err != nil {
					t.Errorf("%s: build: %v", name, err)
				}
			}
			if _, tag, _ := strings.Cut(s.Image, ":"); tag == "" || tag == "latest" {
				t.Errorf("%s: image %q, want a version", name, s.Image)
			}
			for other, on := range s.DependsOn {
				needed, ok := c.Services[other]
				if !ok || other == name {
					t.Errorf("%s: depends on %q, which is no other service", name, other)
				}
				if len(needed.Profiles) > 0 && !slices.Equal(needed.Profiles, s.Profiles) { // compose would not start
					t.Errorf("%s: depends on %s, which is started with the profiles %q only", name, other, needed.Profiles)
				}
				switch {
				case on.Condition == "service_started":
				case on.Condition == "service_healthy" &&
					(needed.Healthcheck != nil || needed.Build != ""): // the image has a check
				default:
					t.Errorf("%s: waits for %s to be %q, which nothing says", name, other, on.Condition)
				}
			}
			for _, m := range s.Volumes {
				if !strings.HasPrefix(m.source, "./") || !strings.HasPrefix(m.target, "/") || m.mode != "ro" {
					t.Errorf("%s: mount %+v, want ./here:/there:ro", name, m)
				}
				if _, err := os.Stat(filepath.Join(repository, m.source)); err != nil {
					t.Errorf("%s: mount: %v", name, err)
				}
			}
			for _, p := range s.Ports {
				if other, taken := hostPorts[p.host]; taken {
					t.Errorf("%s and %s: both publish port %d", name, other, p.host)
				}
				hostPorts[p.host] = name
				if p.host != p.container {
					t.Errorf("%s: port %d is published as %d; the comments promise the same", name, p.container, p.host)
				}
			}
			for variable, value := range s.Environment {
				if !knownVariable.MatchString(variable) {
					t.Errorf("%s: variable %q is not known", name, variable)
				}
				if _, ok := c.Services[value.Value]; variable == "STATSD_HOST" && !ok {
					t.Errorf("%s: %s: %s is no service", name, variable, value.Value)
				}
				if value.Tag == "!!bool" { // docker compose refuses it
					t.Errorf("%s: %s: %s without quotes", name, variable, value.Value)
				}
			}
			if s.isRedis() || s.isMemcached() {
				if !regexp.MustCompile(`^(redis|memcached):\d+\.\d+\.\d+-alpine$`).MatchString(s.Image) {
					t.Errorf("%s: image %s, want a patch release on Alpine", name, s.Image)
				}
				for _, p := range s.Ports { // there is no password
					if !net.ParseIP(p.ip).IsLoopback() {
						t.Errorf("%s: port %d is published to the world", name, p.host)
					}
				}
			}
		}
	})
}

const divvyPort = 8321

// The service's ports are those of the image, but for divvy's where there are no
// rules of divvy to open it, and its command leads to rules.
func TestComposeServiceMatchesImage(t *testing.T) {
	var exposed []int
	for _, arg := range readDockerfile(t)[1].all("EXPOSE") {
		for word := range strings.FieldsSeq(arg) {
			port, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			if port != divvyPort {
				exposed = append(exposed, port)
			}
		}
	}
	slices.Sort(exposed)
	eachCompose(t, func(t *testing.T, _ string, c compose) {
		s := c.Services["ratelimit"]
		if got := s.containerPorts(); !slices.Equal(got, exposed) {
			t.Errorf("ports %d, and the image exposes %d", got, exposed)
		}
		if shutdown := 30 * time.Second; s.StopGrace <= shutdown { // Docker's own is 10 s
			t.Errorf("it is killed after %v, and calls in flight have SHUTDOWN_TIMEOUT, %v, to finish", s.StopGrace, shutdown)
		}
		dir := configFlag(t, s.Command)
		rules, ok := s.host(dir)
		if !ok {
			t.Fatalf("no volume holds %s", dir)
		}
		files, err := filepath.Glob(filepath.Join(rules, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			t.Errorf("no rules in %s", rules)
		}
	})
}

// The service starts as each command in a file's comments starts it, with the
// variables and files that compose gives it then. The mounts are made with
// symbolic links below a temporary root, and the other services that it is
// told of are here on ports of their own.
func TestComposeServiceStarts(t *testing.T) {
	eachCompose(t, func(t *testing.T, path string, c compose) {
		ups := upsIn(t, path)
		for name, s := range c.Services {
			shown := slices.ContainsFunc(ups, func(u up) bool { return slices.Contains(u.only, name) }) ||
				len(s.Profiles) == 0 || slices.ContainsFunc(ups, func(u up) bool { return slices.Contains(s.Profiles, u.profile) })
			if !shown {
				t.Errorf("%s: no command in the comments names it or has one of the profiles %q", name, s.Profiles)
			}
		}
		for _, u := range ups {
			t.Run(u.command, func(t *testing.T) { c.testUp(t, u) })
		}
	})
}

// up is a command that starts services.
type up struct {
	command string
	env     map[string]string
	profile string
	only    []string // services; all, if there are none
	noDeps  bool
}

// upCommand is one in a comment.
var upCommand = regexp.MustCompile(
	`(?m)^#   ((?:[A-Z_]+=\S+ )*)docker compose (?:-f \S+ )?(?:--profile (\S+) )?up( .*)?$`)

// upsIn are the commands that a compose file's comments show.
func upsIn(t *testing.T, path string) []up {
	t.Helper()
	text := read(t, path)
	var ups []up
	for _, m := range upCommand.FindAllStringSubmatch(text, -1) {
		u := up{command: strings.TrimPrefix(m[0], "#   "), profile: m[2], env: make(map[string]string)}
		for assignment := range strings.FieldsSeq(m[1]) {
			name, value, _ := strings.Cut(assignment, "=")
			u.env[name] = value
			if !strings.Contains(text, "${"+name+":-") {
				t.Errorf("%s: %s is used nowhere", u.command, name)
			}
		}
		for word := range strings.FieldsSeq(m[3]) {
			switch {
			case word == "--no-deps":
				u.noDeps = true
			case !isFlag(word):
				u.only = append(u.only, word)
			}
		}
		ups = append(ups, u)
	}
	if len(ups) == 0 {
		t.Errorf("%s shows no command to start it", path)
	}
	return ups
}

// starts tells which services a command starts.
func (u up) starts(c compose) map[string]bool {
	started := make(map[string]bool)
	var start func(name string)
	start = func(name string) {
		started[name] = true
		for other := range c.Services[name].DependsOn {
			if !u.noDeps {
				start(other)
			}
		}
	}
	for name, s := range c.Services {
		byProfile := len(s.Profiles) == 0 || slices.Contains(s.Profiles, u.profile)
		if slices.Contains(u.only, name) || len(u.only) == 0 && byProfile {
			start(name)
		}
	}
	return started
}

// interpolated matches a variable from the environment of compose, with its default.
var interpolated = regexp.MustCompile(`\$\{([A-Z_]+):-([^}]*)\}`)

// value is what a container finds in a variable.
func (u up) value(s composeService, variable string) string {
	return interpolated.ReplaceAllStringFunc(s.Environment[variable].Value, func(text string) string {
		m := interpolated.FindStringSubmatch(text)
		return cmp.Or(u.env[m[1]], m[2])
	})
}

// testUp starts what the service needs of the others, and the service.
func (c compose) testUp(t *testing.T, u up) {
	s, started := c.Services["ratelimit"], u.starts(c)
	servers := make(map[string]*redistest.Server)
	addrs := make(map[string]string)
	var memcached *memcachedtest.Server
	for name := range started {
		switch other := c.Services[name]; {
		case other.isRedis():
			servers[name] = other.startRedis(t)
			addrs[name] = servers[name].Addr
		case other.isMemcached():
			memcached = other.startMemcached(t)
			addrs[name] = memcached.Addr
		}
	}
	var statsd *sink
	if started[u.value(s, "STATSD_HOST")] {
		statsd = listenSink(t, "tcp", anyPort)
	}
	rules := filepath.Join(s.mountAll(t), configFlag(t, s.Command))
	running := startServiceFrom(t, rules, c.environment(t, u, addrs, statsd)...)
	asks := []struct{ domain, descriptor, want string }{
		{"checkout", "customer=1042", "OK 19/20 SECOND"},
		{"rl", "route=test", "OK 2/3 MINUTE"},
	}
	for _, ask := range asks {
		_, answer := running.ask(t, ask.domain, ask.descriptor)
		if got := describe(answer); !slices.Equal(got, []string{ask.want}) {
			t.Errorf("%s: %s: %q, want %q", ask.domain, ask.descriptor, got, ask.want)
		}
	}
	for name, server := range servers { // whatever is started is of use
		if server.Info(t, "commandstats")["cmdstat_incrby"] == "" {
			t.Errorf("nothing was counted in %s", name)
		}
	}
	if memcached != nil && memcached.Stats(t)["cmd_set"] == "0" {
		t.Error("nothing was counted in Memcached")
	}
	if statsd != nil {
		running.until(t, "counters arrive at the exporter", func() error {
			if len(statsd.all()) == 0 {
				return errors.New("none yet")
			}
			return nil
		})
	}

	// The health check of the image finds the service by its environment.
	_, port, _ := net.SplitHostPort(running.http)
	check := serviceCommand(t, "PORT="+port)
	check.Args = []string{check.Path, "health"}
	if out, err := check.CombinedOutput(); err != nil || string(out) != "OK\n" {
		t.Errorf("health of a ready service: %v\n%s", err, out)
	}
}

// environment is what the service is told, with the places of other services
// here: of the stores by their names, and statsd if it is not nil.
func (c compose) environment(t *testing.T, u up, addrs map[string]string, statsd *sink) []string {
	t.Helper()
	const absent = "127.0.0.1:1" // where a service is that was not started
	s := c.Services["ratelimit"]
	env := make(map[string]string)
	for variable := range s.Environment {
		value := u.value(s, variable)
		host, port, _ := strings.Cut(value, ":")
		url, hostPort := strings.HasSuffix(variable, "_URL"), variable == "MEMCACHE_HOST_PORT"
		switch other := c.Services[host]; {
		case url && (!other.isRedis() || port != "6379"):
			t.Errorf("%s: no Redis is at %s", variable, value)
		case hostPort && (!other.isMemcached() || port != "11211"):
			t.Errorf("%s: no Memcached is at %s", variable, value)
		case url || hostPort:
			value = cmp.Or(addrs[host], absent)
		}
		env[variable] = value
	}
	if statsd != nil {
		env["STATSD_HOST"], env["STATSD_PORT"] = "127.0.0.1", portOf(t, statsd.addr)
	}
	// A busy machine is not what is tested here.
	list := []string{"REDIS_TIMEOUT=5s", "REDIS_PERSECOND_TIMEOUT=5s", "MEMCACHE_TIMEOUT=5s", "STATS_FLUSH_INTERVAL=100ms"}
	for variable, value := range env {
		list = append(list, variable+"="+value)
	}
	return list
}

func (s composeService) isRedis() bool { return strings.HasPrefix(s.Image, "redis:") }

func (s composeService) isMemcached() bool { return strings.HasPrefix(s.Image, "memcached:") }

// startMemcached runs the service's command here.
func (s composeService) startMemcached(t *testing.T) *memcachedtest.Server {
	t.Helper()
	if len(s.Command) == 0 || s.Command[0] != "memcached" {
		t.Fatalf("command %q, want memcached", s.Command)
	}
	return memcachedtest.Start(t, memcachedtest.Options{Args: s.Command[1:]})
}

// startRedis runs the service's command here, and its health check.
func (s composeService) startRedis(t *testing.T) *redistest.Server {
	t.Helper()
	if len(s.Command) == 0 || s.Command[0] != "redis-server" {
		t.Fatalf("command %q, want redis-server", s.Command)
	}
	server := redistest.Start(t, redistest.Options{Args: s.Command[1:]})
	host, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	check := s.Healthcheck.Test
	if len(check) < 2 || check[0] != "CMD" || check[1] != "redis-cli" {
		t.Fatalf("healthcheck %q, want CMD and redis-cli", check)
	}
	out, err := exec.Command(check[1], append([]string{"-h", host, "-p", port}, check[2:]...)...).CombinedOutput()
	if err != nil || string(out) != "PONG\n" {
		t.Errorf("healthcheck of a Redis: %v\n%s", err, out)
	}
	return server
}

// mountAll makes the service's mounts below a temporary directory.
func (s composeService) mountAll(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for _, m := range s.Volumes {
		source, err := filepath.Abs(filepath.Join(repository, m.source))
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(source, target); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Each Envoy of the example reads a file that is mounted, publishes the ports
// its file listens on, and reaches for nothing but services of the example on
// ports they listen on.
func TestComposeEnvoys(t *testing.T) {
	eachCompose(t, func(t *testing.T, _ string, c compose) {
		for _, name := range slices.Sorted(maps.Keys(c.Services)) {
			s := c.Services[name]
			if !strings.HasPrefix(s.Image, "envoyproxy/envoy:") {
				continue
			}
			if want := "envoyproxy/envoy:distroless-v" + harness.EnvoyVersion[:strings.LastIndex(harness.EnvoyVersion,
				".")]; !strings.HasPrefix(s.Image, want) {
				t.Errorf("%s: image %s, want %s…: the tests run Envoy %s", name, s.Image, want, harness.EnvoyVersion)
			}
			if len(s.Command) < 2 || s.Command[0] != "-c" {
				t.Fatalf("%s: command %q, want -c and a file", name, s.Command)
			}
			file, ok := s.host(s.Command[1])
			if !ok {
				t.Fatalf("%s: no volume holds %s", name, s.Command[1])
			}
			var listening []int
			readYAML(t, file).eachAddress(t, func(a address) address {
				host, port := a.Socket.Host, a.Socket.Port
				switch {
				case host == "0.0.0.0":
					listening = append(listening, port)
				case !slices.Contains(c.Services[host].containerPorts(), port):
					t.Errorf("%s: %s is no service's address", file, a)
				}
				return a
			})
			slices.Sort(listening)
			if got := s.containerPorts(); !slices.Equal(got, listening) {
				t.Errorf("%s: ports %d, and its file listens on %d", name, got, listening)
			}
		}
	})
}
