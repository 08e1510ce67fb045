package docker

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// block is a command in a compose file's comments that starts services, and the commands below it.
type block struct {
	up    string
	lines []string
}

// commandsIn returns the commands in the comments of a file. They are indented by three spaces.
func commandsIn(t *testing.T, path string) (commands []string) {
	t.Helper()
	text := testfiles.Read(t, path)
	for _, m := range regexp.MustCompile(`(?m)^#   (\S.*)$`).FindAllStringSubmatch(string(text), -1) {
		commands = append(commands, m[1])
	}
	return commands
}

// blocksIn returns the commands in the comments of a compose file.
func blocksIn(t *testing.T, path string) (blocks []block) {
	t.Helper()
	for _, command := range commandsIn(t, path) {
		switch {
		case regexp.MustCompile(`docker compose .*up\b`).MatchString(command):
			blocks = append(blocks, block{up: command})
		case len(blocks) == 0:
			t.Fatalf("%s: %s stands above the command that starts the services", path, command)
		default:
			b := &blocks[len(blocks)-1]
			b.lines = append(b.lines, command)
		}
	}
	return blocks
}

// project is a running compose project.
type project struct {
	*engine
	dir  string
	file string
}

// shell runs a command of the comments as a user does, in the directory of the compose file. It differs in what a
// script needs: no terminal, services in the background, an editor that changes a limit, and curl fails if the status
// is an error, unless it prints it (-i).
func (p *project) shell(t *testing.T, command string) string {
	t.Helper()
	command = strings.NewReplacer(
		"docker compose", strings.Join(p.compose, " "), " up --build", " up -d --build", " exec ", " exec -T ", "curl -i",
		"curl -isS --max-time 20", "curl ", "curl -fsS --max-time 20 ",
	).Replace(command)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Dir = p.dir
	cmd.Env = append(slices.Clone(p.env), "EDITOR=sed -i s/requests_per_unit:.3/&03/")
	return output(t, cmd)
}

func (e *engine) testCompose(t *testing.T, source, file string) {
	p := &project{e, source, file}
	blocks := blocksIn(t, filepath.Join(source, file))
	for _, b := range blocks {
		t.Run(b.up, func(t *testing.T) {
			defer step(t, "all of it")()
			t.Cleanup(func() { p.down(t) })
			p.shell(t, b.up)
			p.awaitHealthy(t)
			lines := b.lines
			if b.up != blocks[0].up {
				lines = append(slices.Clone(blocks[0].lines[:2]), lines...) // the requests that every variant answers
			}
			if file == "docker-compose-example.yml" {
				p.testTable(t)
			}
			for _, line := range lines {
				p.try(t, line)
			}
			if file == "docker-compose-example.yml" { // The editor has raised the limit that the table has reached.
				harness.Await(t, patience, "the changed limit is in force", func() error {
					return answers(t, "curl localhost:8888/test", 200)
				})
			}
		})
	}
}

// printed has what a command of the comments prints, by a part of the command. Others print anything.
var printed = map[string]string{
	"/healthcheck": "OK",
	"/json":        `"overallCode":"OK"`,
	"/rlconfig":    "rl.route_test: unit=MINUTE requests_per_unit=3",
	"--scan":       "rl_route_test_",
	"commandstats": "cmdstat_incrby:",
	"/metrics":     "ratelimit_service_rate_limit_total_hits{",
	"curl -i":      "HTTP/1.1 ",
	"/stats?":      "cluster.mock.ratelimit.over_limit: ",
	"$EDITOR":      "",
}

// try runs a command of the comments until it prints what it should: counters need a moment to reach the exporter.
func (p *project) try(t *testing.T, command string) {
	t.Helper()
	harness.Await(t, patience, command, func() error {
		out := p.shell(t, command)
		for part, want := range printed {
			if strings.Contains(command, part) && !strings.Contains(out, want) {
				return fmt.Errorf("want %q in\n%s", want, out)
			}
		}
		t.Logf("%s\n\t%.300s", command, strings.ReplaceAll(out, "\n", "\n\t"))
		return nil
	})
}

// down removes the project.
func (p *project) down(t *testing.T) {
	// The context of the test has ended.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	command := func(args ...string) *exec.Cmd {
		args = append(append(slices.Clone(p.compose[1:]), "-f", p.file, "--profile", "two-redis", "--profile", "memcached",
			"--profile", "statsd"), args...)
		cmd := exec.CommandContext(ctx, p.compose[0], args...)
		cmd.Dir, cmd.Env = p.dir, p.env
		return cmd
	}
	if t.Failed() {
		logs, _ := command("logs", "--tail", "40").CombinedOutput()
		t.Logf("the log of the project:\n%s", logs)
	}
	if out, err := command("down", "--volumes", "--remove-orphans").CombinedOutput(); err != nil {
		t.Errorf("compose down: %v\n%s", err, out)
	}
}

// awaitHealthy waits until all containers of the project with a health check are healthy, and all others run.
func (p *project) awaitHealthy(t *testing.T) {
	t.Helper()
	label := "label=com.docker.compose.project.working_dir=" + p.dir
	harness.Await(t, patience, "the services are healthy", func() error {
		states := p.run(t, "ps", "-a", "--filter", label, "--format", "{{.Names}} {{.Status}}")
		if states == "" {
			return fmt.Errorf("no container has the %s", label)
		}
		for line := range strings.Lines(states) {
			if !strings.Contains(line, " Up ") || strings.Contains(line, "health: starting") ||
				strings.Contains(line, "unhealthy") {
				return fmt.Errorf("%s", states)
			}
		}
		return nil
	})
}

// answers runs a curl command, and returns an error if the answer has another status than want.
func answers(t *testing.T, curl string, want int) error {
	t.Helper()
	cmd := strings.Replace(curl, "curl ", "curl -sS --max-time 20 -o /dev/null -w '%{http_code}' ", 1)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", cmd).CombinedOutput()
	if err != nil || string(out) != strconv.Itoa(want) {
		return fmt.Errorf("%s: %s (%v), want status %d", curl, out, err, want)
	}
	return nil
}

// readmeCommand returns the README's command for a reader with Docker.
func readmeCommand(t *testing.T) string {
	t.Helper()
	readme := testfiles.Read(t, filepath.Join(repository, "README.md"))
	m := regexp.MustCompile("\\| `(docker build [^`]* && docker run --rm [^`]*)` \\|\n").FindSubmatch(readme)
	if m == nil {
		t.Fatal("README.md has no command for Docker")
	}
	return string(m[1])
}

// testReadme runs readmeCommand, in the background, and asks the service.
func (e *engine) testReadme(t *testing.T, source string) {
	const name = "ratelimit-docker-check-readme"
	command := strings.Replace(readmeCommand(t), "docker run --rm ", "docker run -d --rm --name "+name+" ", 1)
	if r := e.shell(t, source, command); r.code != 0 {
		t.Fatalf("%s: exit %d\n%s", command, r.code, r.out)
	}
	t.Cleanup(func() {
		if out, err := e.command(context.WithoutCancel(t.Context()), "rm", "-f", name).CombinedOutput(); err != nil {
			t.Errorf("docker rm: %v\n%s", err, out)
		}
	})
	const request = `-d '{"domain":"rl","descriptors":[{"entries":[{"key":"foo","value":"any"}]}]}'`
	harness.Await(t, patience, "a request is refused", func() error {
		return answers(t, "curl localhost:8080/json "+request, 429)
	})
	if err := answers(t, "curl localhost:6070/", 200); err != nil {
		t.Error(err)
	}
}

// row is a request of the README's table, and the statuses of its answers.
type row struct {
	curl     string
	statuses []int
}

func tableRows(t *testing.T) (rows []row) {
	t.Helper()
	readme := testfiles.Read(t, filepath.Join(repository, "README.md"))
	for _, m := range regexp.MustCompile("(?m)^\\| `(curl localhost:8888[^`]*)` \\| ([^|]+) \\|$").FindAllStringSubmatch(string(readme), -1) {
		rows = append(rows, row{m[1], promised(t, m[2])})
	}
	return rows
}

// testTable sends the requests of the README's table to Envoy. A request that the service does not answer within
// Envoy's timeout passes, as on a machine that is busy; then it sends all again in another minute.
func (p *project) testTable(t *testing.T) {
	t.Helper()
	harness.Await(t, patience, "Envoy answers", func() error { return answers(t, "curl localhost:8888/", 200) })
	const enough = 20 * time.Second // for all requests
	for attempt := range 5 {
		rest := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))
		if attempt > 0 || rest < enough {
			time.Sleep(rest) // The answers hold from the start of a minute.
		}
		before := p.unanswered(t)
		var err error
		for _, row := range tableRows(t) {
			for i, want := range row.statuses {
				if failed := answers(t, row.curl, want); failed != nil {
					err = errors.Join(err, fmt.Errorf("request %d: %w; README.md says %v", i+1, failed, row.statuses))
				}
			}
		}
		if err == nil {
			return
		}
		after := p.unanswered(t)
		if t.Log(err); after == before {
			break
		}
		t.Logf("Envoy had no answer in time: %s", after)
	}
	t.Error("the answers are not those of the README, see above")
}

// unanswered returns Envoy's counts of requests that the service has not answered in time.
func (p *project) unanswered(t *testing.T) string {
	t.Helper()
	return p.shell(t, "curl 'localhost:8001/stats?filter=ratelimit.(error|failure_mode_allowed)'")
}

// promised spells out an answer of the table, such as "200 twice, then 429" or "always 429".
func promised(t *testing.T, answer string) []int {
	t.Helper()
	switch {
	case strings.HasPrefix(answer, "always 200"):
		return []int{200, 200, 200, 200, 200, 200}
	case strings.HasPrefix(answer, "always 429"):
		return []int{429, 429, 429}
	}
	words := []string{"once", "twice", "three times", "four times", "five times"}
	i := slices.IndexFunc(words, func(word string) bool { return answer == "200 "+word+", then 429" })
	if i < 0 {
		t.Fatalf("README.md: cannot read the answer %q", answer)
	}
	return append(slices.Repeat([]int{200}, i+1), 429, 429)
}
