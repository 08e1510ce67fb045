//go:build linux

package siege

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
)

// Attacks by files among the rules.
var ruleAttacks = []attack{
	{
		letter: "H", name: "a link to a secret",
		does:  "links among the rules lead to files outside; ports that callers reach are searched for their paths and text",
		quiet: true, strike: linkToSecret,
	},
	{
		letter: "H", name: "links as Kubernetes makes them", does: "rules behind `..data`, which is swapped", quiet: true,
		strike: kubernetesLinks,
	},
	{
		letter: "I", name: "a pipe among the rules",
		does:  "a FIFO that is never written to is read as rules; then the rules change",
		quiet: true, strike: func(x *trial) { x.hangingFile(fifoFile) },
	},
	{
		letter: "I", name: "a read that does not return",
		does:  "a file system that answers no read; then the rules change",
		quiet: true, strike: func(x *trial) { x.hangingFile(hungFile) },
	},
	{
		letter: "K", name: "400,000 rules",
		does:      "the service reads 400,000 rules in one file, twice",
		unhurried: true, prepare: func(x *trial, o *options) {
			o.group, o.ready = -1, 2*time.Minute
			o.rules = manyRules(pick(x, 50_000, 400_000))
		}, strike: loadManyRules, kept: 600 << 20, peak: 1 << 40,
	},
}

// ask returns the overall code for one descriptor.
func (x *trial) ask(domain, key, value string) (pb.RateLimitResponse_Code, error) {
	r := request([2]string{key, value})
	r.Domain = domain
	answer, err := x.neighbour.client.ShouldRateLimit(x.ctx, r)
	return answer.GetOverallCode(), err
}

// awaitCode asks until the answer is this one.
func (x *trial) awaitCode(within time.Duration, domain, key string, want pb.RateLimitResponse_Code) error {
	return harness.Retry(within, func() error {
		code, err := x.ask(domain, key, "1")
		if err == nil && code != want {
			err = fmt.Errorf("%s: %s is answered %v, want %v", domain, key, code, want)
		}
		return err
	})
}

// awaitLog waits until the log has this text.
func (x *trial) awaitLog(within time.Duration, text string) error {
	return harness.Retry(within, func() error {
		if !strings.Contains(x.service.log(), text) {
			return fmt.Errorf("the log does not mention %q", text)
		}
		return nil
	})
}

// put makes a file that is removed when the attack has ended.
func (x *trial) put(path, text string) {
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		x.Fatal(err)
	}
}

func (x *trial) link(to, name string) {
	if err := os.Symlink(to, filepath.Join(x.service.config, name)); err != nil {
		x.Fatal(err)
	}
}

func (x *trial) remove(name string) {
	if err := os.RemoveAll(filepath.Join(x.service.config, name)); err != nil {
		x.Fatal(err)
	}
}

// denyAll is a file of rules for a domain of its own.
func denyAll(domain string) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n- {key: any, rate_limit: {unit: hour, requests_per_unit: 0}}\n", domain)
}

func linkToSecret(x *trial) {
	outside := filepath.Join(x.TempDir(), "outside-secrets")
	if err := os.Mkdir(outside, 0o755); err != nil {
		x.Fatal(err)
	}
	x.put(filepath.Join(outside, "token"), secret+"\n")
	x.put(filepath.Join(outside, "outside.yaml"), denyAll("outside"))

	x.link(filepath.Join(outside, "token"), "leak.yaml")
	if err := x.awaitLog(x.patience(), "leak.yaml"); err != nil {
		x.complain("a link to a secret: %v", err)
	}
	x.search(secret, "leak.yaml", outside, x.service.dir)
	x.remove("leak.yaml")

	x.put(filepath.Join(x.service.config, "broken.yaml"), "domain: broken\n"+secret+": 1\n")
	if err := x.awaitLog(x.patience(), "broken.yaml"); err != nil {
		x.complain("a mistake in the rules: %v", err)
	}
	x.search(secret, "broken.yaml", x.service.dir)
	x.remove("broken.yaml")

	// A directory outside, whose rules would be in force.
	x.link(outside, "directory")
	if err := x.awaitLog(x.patience(), "the link leads to the directory"); err != nil {
		x.complain("a link to a directory: %v", err)
	}
	if code, err := x.ask("outside", "any", "1"); err != nil || code != pb.RateLimitResponse_OK {
		x.complain("rules of a directory outside are in force: %v, %v", code, err)
	}
	x.remove("directory")
	x.service.writeRules(x.T, "siege.yaml", baseRules+"- {key: late, rate_limit: {unit: hour, requests_per_unit: 0}}\n")
	if err := x.awaitCode(x.patience(), "siege", "late", pb.RateLimitResponse_OVER_LIMIT); err != nil {
		x.complain("after the links were removed: %v", err)
	}
}

// patience is for what a setting or a busy machine delays.
func (x *trial) patience() time.Duration { return pick(x, 8*time.Second, 5*time.Second) }

// search looks for words in all that callers can read.
func (x *trial) search(words ...string) {
	for _, addr := range []string{x.service.http, x.service.health} {
		for _, path := range []string{"/readyz", "/healthcheck", "/livez", "/", "/json"} {
			resp, err := x.service.client.Get("http://" + addr + path)
			if err != nil {
				if addr == x.service.http { // others may not listen
					x.complain("%s: %v", path, err)
				}
				continue
			}
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil {
				x.complain("%s: %v", path, err)
			}
			for _, word := range words {
				if strings.Contains(string(text), word) {
					x.complain("%s tells callers of %q: %.200s", path, word, text)
				}
			}
			if path == "/readyz" && resp.StatusCode != http.StatusOK {
				x.complain("/readyz is %s, although the old rules are in force", resp.Status)
			}
		}
	}
}

// kubernetesLinks mounts a ConfigMap and changes it, as a kubelet does.
func kubernetesLinks(x *trial) {
	for n := range 2 {
		dir := fmt.Sprintf("..version-%d", n)
		if err := os.Mkdir(filepath.Join(x.service.config, dir), 0o755); err != nil {
			x.Fatal(err)
		}
		x.put(filepath.Join(x.service.config, dir, "map.yaml"), denyAll(fmt.Sprintf("version%d", n)))
		x.link(dir, "..data_tmp")
		if err := os.Rename(filepath.Join(x.service.config, "..data_tmp"),
			filepath.Join(x.service.config, "..data")); err != nil {
			x.Fatal(err)
		}
		if n == 0 {
			x.link("..data/map.yaml", "map.yaml")
		}
		if err := x.awaitCode(x.patience(), fmt.Sprintf("version%d", n), "any", pb.RateLimitResponse_OVER_LIMIT); err != nil {
			x.complain("version %d of a ConfigMap: %v", n, err)
		}
	}
}

// fifoFile makes a pipe that is held open, so that reading it waits for ever.
func fifoFile(path string) (remove, release func() error, err error) {
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		return nil, nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	return func() error { return os.Remove(path) }, file.Close, nil
}

// hangingFile puts a file among the rules whose read does not return, removes it
// and changes the rules.
func (x *trial) hangingFile(make func(path string) (remove, release func() error, err error)) {
	path := filepath.Join(x.service.config, "hang.yaml")
	remove, release, err := make(path)
	if err != nil {
		x.result.unmeasured = err.Error()
		return
	}
	defer func() {
		if err := release(); err != nil {
			x.complain("%v", err)
		}
	}()
	x.service.reload()
	begun := time.Now()
	if err := x.awaitLog(15*time.Second, "hang.yaml"); err != nil {
		x.complain("%v, although it cannot be read", err)
	} else {
		x.note("it is in the log after %.1f s", time.Since(begun).Seconds())
	}
	if err := remove(); err != nil {
		x.Fatal(err)
	}
	begun = time.Now()
	x.service.writeRules(x.T, "siege.yaml", baseRules+"- {key: late, rate_limit: {unit: hour, requests_per_unit: 0}}\n")
	x.service.reload()
	if err := x.awaitCode(15*time.Second, "siege", "late", pb.RateLimitResponse_OVER_LIMIT); err != nil {
		x.complain("a later change: %v", err)
	} else {
		x.note("a later change is in force after %.1f s", time.Since(begun).Seconds())
	}
}

// manyRules are so many values of one key, and one that denies.
func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "- key: tenant\n  value: tenant-%06d\n  rate_limit: {unit: minute, requests_per_unit: %d}\n",
			i, i%1000)
	}
	return b.String()
}

func loadManyRules(x *trial) {
	n := pick(x, 50_000, 400_000)
	most := pick[int64](x, 140<<20, 600<<20)
	peak, err := x.service.peak()
	cpu, cpuErr := x.service.proc.CPU()
	if err != nil || cpuErr != nil {
		return // it is gone, and that is noticed
	}
	x.note("%d rules: ready after %.1f s and %.1f s of CPU, %d MiB at most", n, x.service.took.Seconds(), cpu.Seconds(),
		peak>>20)
	if peak > most {
		x.complain("%d rules took %d MiB to load, want at most %d", n, peak>>20, most>>20)
	}
	// How fast the machine is, the YAML library says. It takes half of the time, if memory is not short.
	if alone := x.yamlCPU(manyRules(n)); x.full && cpu > 4*alone {
		x.suspect("%d rules took %v of CPU to load, want at most 4 times the %v of the YAML library", n, cpu, alone)
	}
	begun := time.Now()
	x.service.writeRules(x.T, "siege.yaml",
		baseRules+manyRules(n)+"- {key: late, rate_limit: {unit: hour, requests_per_unit: 0}}\n")
	if err := x.awaitCode(time.Minute, "siege", "late", pb.RateLimitResponse_OVER_LIMIT); err != nil {
		x.complain("a change of %d rules: %v", n, err)
	}
	if peak, err = x.service.peak(); err == nil {
		x.note("a change took %.1f s, and %d MiB at most", time.Since(begun).Seconds(), peak>>20)
	}
}

// yamlCPU is the CPU time that the YAML library takes to read text in this process.
func (x *trial) yamlCPU(text string) time.Duration {
	var before, after syscall.Rusage
	var nodes yaml.Node
	if err := errors.Join(syscall.Getrusage(syscall.RUSAGE_SELF, &before), yaml.Unmarshal([]byte(text), &nodes),
		syscall.Getrusage(syscall.RUSAGE_SELF, &after)); err != nil {
		x.complain("YAML alone: %v", err)
	}
	return time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
}
