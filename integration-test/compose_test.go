package integration

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
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
func eachCompose(t *testing.T, test func(t *testing.T, c compose)) {
	for _, path := range composeFiles {
		t.Run(path, func(t *testing.T) {
			var c compose
			d := yaml.NewDecoder(strings.NewReader(read(t, path)))
			d.KnownFields(true)
			if err := d.Decode(&c); err != nil {
				t.Fatal(err)
			}
			test(t, c)
		})
	}
}

// knownVariable is a setting of the service. The list is of the families that
// a compose file may want, so that a slip of the pen is found.
var knownVariable = regexp.MustCompile(`^(HOST|PORT|(GRPC|DEBUG)_(HOST|PORT)|LOG_(LEVEL|FORMAT)|BACKEND_TYPE|CONFIG_TYPE` +
	`|RUNTIME_(ROOT|SUBDIRECTORY|APPDIRECTORY|IGNOREDOTFILES)|USE_(STATSD|PROMETHEUS)|STATSD_(HOST|PORT)|SHUTDOWN_TIMEOUT|MEMORY_MAX_BYTES` +
	`|REDIS_(URL|TYPE|SOCKET_TYPE)|MEMCACHE_HOST_PORT)$`)

func TestComposeIsSound(t *testing.T) {
	eachCompose(t, func(t *testing.T, c compose) {
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
				switch {
				case on.Condition == "service_started":
				case on.Condition == "service_healthy" && needed.Healthcheck != nil:
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
				if value.Tag == "!!bool" { // docker compose refuses it
					t.Errorf("%s: %s: %s without quotes", name, variable, value.Value)
				}
			}
		}
	})
}

// The service's ports are those of the image, and its variables lead to rules.
func TestComposeServiceMatchesImage(t *testing.T) {
	var exposed []int
	for _, arg := range readDockerfile(t)[1].all("EXPOSE") {
		for word := range strings.FieldsSeq(arg) {
			port, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			exposed = append(exposed, port)
		}
	}
	slices.Sort(exposed)
	eachCompose(t, func(t *testing.T, c compose) {
		s := c.Services["ratelimit"]
		if got := s.containerPorts(); !slices.Equal(got, exposed) {
			t.Errorf("ports %d, and the image exposes %d", got, exposed)
		}
		dir := filepath.Join(s.Environment["RUNTIME_ROOT"].Value, s.Environment["RUNTIME_SUBDIRECTORY"].Value, "config")
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

// interpolated is a variable of whoever runs compose, with its default.
var interpolated = regexp.MustCompile(`\$\{[A-Z_]+:-([^}]*)\}`)

// The service starts with the variables and files that compose gives it. The
// mounts are made with symbolic links below a temporary root.
func TestComposeServiceStarts(t *testing.T) {
	eachCompose(t, func(t *testing.T, c compose) {
		s := c.Services["ratelimit"]
		root := t.TempDir()
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
		var env []string
		for name, value := range s.Environment {
			if name == "RUNTIME_ROOT" {
				value.Value = filepath.Join(root, value.Value)
			}
			env = append(env, name+"="+interpolated.ReplaceAllString(value.Value, "$1"))
		}
		running := startService(t, env...)
		asks := []struct{ domain, descriptor, want string }{
			{"mongo_cps", "database=users", "OK 499/500 SECOND"},
			{"rl", "route=test", "OK 2/3 MINUTE"},
		}
		for _, ask := range asks {
			_, answer := running.ask(t, ask.domain, ask.descriptor)
			if got := describe(answer); !slices.Equal(got, []string{ask.want}) {
				t.Errorf("%s: %s: %q, want %q", ask.domain, ask.descriptor, got, ask.want)
			}
		}

		// The health check is a command of the image, so it can be run here too.
		check := s.Healthcheck.Test
		if len(check) < 3 || check[0] != "CMD" || check[1] != "/bin/ratelimit" {
			t.Fatalf("healthcheck %q, want CMD and the image's only program", check)
		}
		check = append(slices.Clone(check[2:]), "--dial-string", running.grpc)
		if out, err := run(check...); err != nil {
			t.Errorf("healthcheck of a ready service: %v\n%s", err, out)
		}
		running.stop(t)
		if out, err := run(check...); err == nil {
			t.Errorf("healthcheck of a stopped service: passes\n%s", out)
		}
	})
}

// Each Envoy of the example reads a file that is mounted, publishes the ports
// its file listens on, and reaches for nothing but services of the example on
// ports they listen on.
func TestComposeEnvoys(t *testing.T) {
	eachCompose(t, func(t *testing.T, c compose) {
		for _, name := range slices.Sorted(maps.Keys(c.Services)) {
			s := c.Services[name]
			if !strings.HasPrefix(s.Image, "envoyproxy/envoy:") {
				continue
			}
			if want := "envoyproxy/envoy:distroless-v" + envoyVersion[:strings.LastIndex(envoyVersion, ".")]; !strings.HasPrefix(s.Image, want) {
				t.Errorf("%s: image %s, want %s…: the tests run Envoy %s", name, s.Image, want, envoyVersion)
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
