package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// program runs the built program, and returns what it prints and its exit code.
func program(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	return outcome(t, exec.Command(path, args...))
}

// outcome runs cmd, without a token.
func outcome(t *testing.T, cmd *exec.Cmd) (out, errOut string, code int) {
	t.Helper()
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DEBUG_TOKEN=") })
	err := cmd.Run()
	if _, isExit := errors.AsType[*exec.ExitError](err); err != nil && !isExit {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// A subject as `denials` and `top` print it can be given to `counter` and `explain`, whatever callers have written, and
// an explanation ends with the command that resets its counter.
func TestSubjectsAreTakenAsPrinted(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "shop.yaml", `
domain: shop
descriptors:
- key: user
  descriptors:
  - key: action
    rate_limit: {unit: year, requests_per_unit: 1}
- key: ip
  count_by_prefix: {v4: 24}
  rate_limit: {unit: year, requests_per_unit: 1}
- key: path
  value: /files/*
  share_threshold: true
  rate_limit: {unit: year, requests_per_unit: 1}
`)
	s := startService(t, append(rules.env(), "LOG_DENIALS=1000")...)
	for _, descriptor := range [][2]string{
		{`user=eve,action=checkout`, ``},
		{`user="a,b c",action="it's"`, ``},
		{`user=al,action="*"`, ``},
		{`user=al,action="pay*"`, ``},
		{`user=ü,action="\u202e\x00"`, ``},
		{`user=al,action`, ``},
		{`user=a==,action=b=c`, ``},
		{`user="C:\\x",action="\"hi"`, ``},
		{`ip=10.1.2.3`, `ip=10.1.2.0/24`},
		{`path=/files/a`, `path="/files/*"`},
	} {
		text := descriptor[0]
		for range 3 {
			_, errOut, code := program(t, "client", "--address", s.grpc, "-domain", "shop", "-descriptors", text)
			if code != 0 && code != 3 {
				t.Fatalf("%s: exit %d, %s", text, code, errOut)
			}
		}
		subjects := map[string]bool{}
		out, errOut, code := program(t, "denials", "--json", "--address", s.debug)
		var d struct{ Subject string }
		if lines := strings.Split(strings.TrimSpace(out), "\n"); code != 0 ||
			json.Unmarshal([]byte(lines[len(lines)-1]), &d) != nil || d.Subject == "" {
			t.Fatalf("denials: exit %d, %s%s", code, out, errOut)
		}
		subjects[d.Subject] = true
		for _, form := range loggedSubjects(t, s, d.Subject) {
			subjects[form] = true
		}
		if descriptor[1] != "" {
			subjects[descriptor[1]] = true
		}
		for subject := range subjects {
			out, errOut, code = program(t, "counter", "get", "shop", subject, "--address", s.debug, "--json")
			if code != 0 || !strings.Contains(out, `"refuses": true`) {
				t.Errorf("get %s: exit %d, %s%s", subject, code, out, errOut)
			}
		}
		out, errOut, code = program(t, "explain", "--domain", "shop", "--descriptors", d.Subject, "--address", s.debug)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		heading := strings.TrimPrefix(lines[0], "shop: ")
		if out, errOut, code := program(t, "counter", "get", "shop", heading, "--address", s.debug); code != 0 {
			t.Errorf("get %s: exit %d, %s%s", heading, code, out, errOut)
		}
		command, found := strings.CutPrefix(lines[len(lines)-1], "to forget what was counted: ")
		if code != 0 || !found {
			t.Fatalf("explain %s: exit %d, %s%s", d.Subject, code, out, errOut)
		}
		if out, errOut, code := shell(t, command); code != 0 || !strings.Contains(out, " -> 0 ") {
			t.Errorf("%s: exit %d, %s%s", command, code, out, errOut)
		}
		if out, errOut, code := shell(t, command); code != 1 || !strings.Contains(errOut, "found no counter of shop for ") {
			t.Errorf("%s a second time: exit %d, %s%s", command, code, out, errOut)
		}
	}
	s.until(t, "top shows a subject that counter takes", func() error {
		out, _, _ := program(t, "top", "--json", "--address", s.debug)
		var shown struct{ Hot []struct{ Subject string } }
		if err := json.Unmarshal([]byte(out), &shown); err != nil || len(shown.Hot) < 8 {
			return fmt.Errorf("%w: %s", err, out)
		}
		for _, hot := range shown.Hot {
			if _, errOut, code := program(t, "counter", "get", "shop", hot.Subject, "--address", s.debug); code != 0 {
				t.Errorf("%s: %s", hot.Subject, errOut)
			}
		}
		return nil
	})
}

// loggedSubjects returns what people may copy from the log line about a denied subject: with the quotes and without.
func loggedSubjects(t *testing.T, s *service, subject string) (forms []string) {
	t.Helper()
	s.until(t, "the denial of "+subject+" is in the log", func() error {
		for _, m := range regexp.MustCompile(`subject=("(?:[^"\\]|\\.)*"|\S+)`).FindAllStringSubmatch(s.log(t), -1) {
			if plain, err := strconv.Unquote(m[1]); plain == subject || err != nil && m[1] == subject {
				forms = []string{m[1], strings.TrimSuffix(strings.TrimPrefix(m[1], `"`), `"`)}
				return nil
			}
		}
		return errors.New("it is not")
	})
	return forms
}

// shell runs a line that begins with ratelimit in a shell.
func shell(t *testing.T, line string) (out, errOut string, code int) {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(path, filepath.Join(dir, "ratelimit")); err != nil {
		t.Fatal(err)
	}
	return outcome(t, exec.Command("sh", "-c", "PATH="+dir+":$PATH; "+line))
}

// `top` and `denials` of several replicas show the sums, the share of each, and which one does not answer.
func TestSeveralReplicas(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- key: ip\n  rate_limit: {unit: year, requests_per_unit: 1000}\n"+
		"- key: ban\n  rate_limit: {unit: year, requests_per_unit: 0}\n")
	a, b := startService(t, rules.env()...), startService(t, rules.env()...)
	closed := harness.Listen(t)
	gone := closed.Addr().String()
	_ = closed.Close() // A port that refuses connections is wanted.
	all := a.debug + "," + b.debug + "," + gone
	type share struct {
		Rule, Subject string
		Hits          float64
		Shares        []float64
	}
	var shown struct {
		Rates    struct{ Rules []share }
		Denied   []share
		Replicas []struct {
			Address, Error string
			Share          float64
		}
	}
	is := func(shares []float64, want ...float64) bool {
		return slices.EqualFunc(shares, want, func(a, b float64) bool { return math.Abs(a-b) < 0.1 })
	}
	for range 40 { // A second and more, so that both have rates.
		for range 3 {
			a.ask(t, "d", "ip=1")
		}
		b.ask(t, "d", "ip=1")
		a.ask(t, "d", "ban=1")
		b.ask(t, "d", "ban=1")
		time.Sleep(50 * time.Millisecond)
	}
	a.until(t, "top has the sums", func() error {
		out, errOut, code := program(t, "top", "--json", "--address", all)
		if err := json.Unmarshal([]byte(out), &shown); err != nil || code != 0 {
			t.Fatalf("exit %d, %v, %s%s", code, err, out, errOut)
		}
		i := slices.IndexFunc(shown.Rates.Rules, func(r share) bool { return r.Rule == "d.ip" })
		if i < 0 || !is(shown.Rates.Rules[i].Shares, 0.75, 0.25, 0) || len(shown.Denied) != 1 ||
			shown.Denied[0].Hits != 80 || !is(shown.Denied[0].Shares, 0.5, 0.5, 0) {
			return errors.New(out)
		}
		return nil
	})
	r := shown.Replicas
	if len(r) != 3 || r[0].Address != a.debug || math.Abs(r[0].Share-4.0/6) > 0.1 || r[1].Error != "" ||
		!strings.Contains(r[2].Error, gone+": connection refused") || r[2].Share != 0 {
		t.Errorf("%+v", r)
	}
	out, _, code := program(t, "top", "--address", all)
	for _, want := range []string{"REPLICA ", "\n" + a.debug + " ", gone + ": connection refused", " 50/50/0  d.ban"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, out)
		}
	}
	out, errOut, code := program(t, "denials", "--address", all)
	if code != 0 || strings.Count(out, a.debug) < 10 || strings.Count(out, b.debug) < 10 ||
		!strings.Contains(out, "REPLICA") || !strings.Contains(errOut, gone+": connection refused") {
		t.Errorf("exit %d, %s\n%s", code, errOut, out)
	}
	times := strings.Split(strings.TrimSpace(out), "\n")[1:]
	if !slices.IsSortedFunc(times, func(a, b string) int { return strings.Compare(a[:24], b[:24]) }) {
		t.Errorf("not in the order of time:\n%s", out)
	}
	if _, errOut, code := program(t, "denials", "--address", gone+",127.0.0.1:1"); code != 1 ||
		strings.Count(errOut, "connection refused") != 2 {
		t.Errorf("without a replica that answers: exit %d, %s", code, errOut)
	}
	twice := a.debug + "," + strings.Replace(a.debug, "127.0.0.1", "localhost", 1)
	if out, _, _ := program(t, "top", "--address", twice); !strings.Contains(out, ": this is the replica at "+a.debug) {
		t.Errorf("one replica by two names:\n%s", out)
	}
	for _, step := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"counter", "get", "d", "ip=1"}, 2, "each replica has its counters in memory: name one replica"},
		{[]string{"explain", "--domain", "d", "--descriptors", "ip=1"}, 0, a.debug + " answers, the first of 3 replicas"},
		{[]string{"record"}, 2, "name one replica for this command"},
	} {
		if _, errOut, code := program(t, append(step.args, "--address", all)...); code != step.code ||
			!strings.Contains(errOut, step.want) {
			t.Errorf("%s: exit %d, %s", step.args, code, errOut)
		}
	}
}
