package simulate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// A caller that waits for the answer to a line gets it before it writes the next line.
func TestAnswersBeforeTheNextLine(t *testing.T) {
	in, to := io.Pipe()
	from, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := Run(t.Context(), Config{Rules: load(t, someRules), Backend: newMemory(t), In: in, Name: "stdin", Out: out})
		done <- err
	}()
	answers := bufio.NewReader(from)
	for i := range 3 {
		fmt.Fprintf(to, `{"at":"%ds","request":%s}`+"\n"+`{"at":`, i, someReq) // and half of the next
		line, err := answers.ReadString('\n')
		if want := fmt.Sprintf(`{"at":"2026-01-01T00:00:0%dZ"`, i); err != nil || !strings.HasPrefix(line, want) {
			t.Fatalf("%v: %s", err, line)
		}
		fmt.Fprintf(to, `"%ds","request":%s}`+"\n", i, someReq)
		if _, err := answers.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	_ = to.Close() // the end of the input
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// When the context ends, all decisions have been written, and Run returns although its
// input stays open.
func TestInterrupted(t *testing.T) {
	in, to := io.Pipe()
	defer func() { _ = to.Close() }() // lets the reader go
	from, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		*Summary
		error
	}
	done := make(chan result, 1)
	go func() {
		s, err := Run(ctx, Config{Rules: load(t, someRules), Backend: newMemory(t), In: in, Name: "stdin", Out: out})
		done <- result{s, err}
	}()
	fmt.Fprintf(to, `{"at":"1s","request":%s}`+"\n", someReq)
	if _, err := bufio.NewReader(from).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	if r := <-done; !errors.Is(r.error, ErrInterrupted) || r.Lines != 1 {
		t.Errorf("%+v", r)
	}
}

// A byte order mark at the beginning is no part of the first line; elsewhere it is
// no JSON.
func TestByteOrderMark(t *testing.T) {
	const mark = "\xef\xbb\xbf"
	line := `{"at":"1s","request":` + someReq + "}\n"
	plain, _, err := simulated(t, Config{Rules: load(t, someRules)}, strings.NewReader(line+line))
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{mark + line + line, mark + "\r\n" + line + line} {
		if out, _, err := simulated(t, Config{Rules: load(t, someRules)}, strings.NewReader(in)); err != nil ||
			!bytes.Equal(out, plain) {
			t.Errorf("%q: %v\n%s", in, err, out)
		}
	}
	if _, _, err := simulated(t, Config{Rules: load(t, someRules)}, strings.NewReader(line+mark+line)); err == nil ||
		!strings.HasPrefix(err.Error(), "requests.jsonl:2: ") {
		t.Errorf("a mark on line 2: %v", err)
	}
}

// failing is a store that fails from some batch on.
type failing struct {
	backend.Backend
	good int
	err  error
}

func (f *failing) Take(ctx context.Context, b *backend.Batch) error {
	if f.good--; f.good < 0 {
		for i := range b.Verdicts {
			b.Verdicts[i] = backend.Verdict{Err: f.err}
		}
		return nil
	}
	return f.Backend.Take(ctx, b)
}

// closed is an output that is.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestTrouble(t *testing.T) {
	line := `{"at":"1s","request":` + someReq + "}\n"
	four := strings.Repeat(line, 4)
	lost := errors.New("redis: gone")

	out, _, err := simulated(t, Config{Rules: load(t, someRules), Backend: &failing{newMemory(t), 2, lost}},
		strings.NewReader(four))
	if !errors.Is(err, lost) || !errors.Is(err, limiter.ErrStoreFailed) ||
		err.Error() != "requests.jsonl:3: the store did not answer: redis: gone" {
		t.Errorf("a store that fails: %v", err)
	}
	if n := bytes.Count(out, []byte("\n")); n != 2 {
		t.Errorf("a store that fails: %d lines of output", n)
	}

	broken := io.MultiReader(strings.NewReader(line+line), iotest.ErrReader(errors.New("the disk is on fire")))
	out, _, err = simulated(t, Config{Rules: load(t, someRules)}, broken)
	if err == nil || err.Error() != "requests.jsonl:3: the disk is on fire" {
		t.Errorf("an input that fails: %v", err)
	}
	if n := bytes.Count(out, []byte("\n")); n != 2 {
		t.Errorf("an input that fails: %d lines of output", n)
	}

	for name, in := range map[string]io.Reader{
		"at the end": strings.NewReader(line),
		"on the way": iotest.OneByteReader(strings.NewReader(four)),
	} {
		_, err := Run(t.Context(), Config{
			Rules: load(t, someRules), Backend: newMemory(t), In: in, Name: "stdin",
			Out: closed{},
		})
		if !errors.Is(err, io.ErrClosedPipe) || !strings.HasPrefix(err.Error(), "the output: ") {
			t.Errorf("an output that fails %s: %v", name, err)
		}
	}
}

// Two replays of a month of traffic give the same output, and the totals are those of a
// count by hand.
func TestMonth(t *testing.T) {
	const every = 5 * time.Minute
	lines := int(30 * 24 * time.Hour / every)
	in := recording(lines, every)
	set := load(t, "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n")
	run := func() (sum [sha256.Size]byte, s *Summary) {
		h := sha256.New()
		s, err := Run(t.Context(), Config{Rules: set, Backend: newMemory(t), In: bytes.NewReader(in), Name: "stdin", Out: h})
		if err != nil {
			t.Fatal(err)
		}
		return [sha256.Size]byte(h.Sum(nil)), s
	}
	first, s := run()
	if again, _ := run(); again != first {
		t.Error("two runs differ")
	}
	admitted := uint64(0)
	counts := make(map[string]int)
	for i, line := range strings.Split(strings.TrimSpace(string(in)), "\n") {
		_, user, _ := strings.Cut(line, `"value":`)
		key := fmt.Sprint(time.Duration(i)*every/time.Hour, user)
		if counts[key]++; counts[key] <= 3 {
			admitted++
		}
	}
	if s.Lines != uint64(lines) || s.OK != admitted || s.Over != uint64(lines)-admitted ||
		s.Last.Sub(s.First) != time.Duration(lines-1)*every {
		t.Errorf("%+v, want %d admitted", s, admitted)
	}
	if f := s.countsByRule[0]; f.hits != uint64(lines) || f.admitted != admitted || f.over != s.Over {
		t.Errorf("%+v", f)
	}
}

func TestProgress(t *testing.T) {
	var told []uint64
	_, _, err := simulated(t, Config{
		Rules: load(t, someRules), Progress: func(s *Summary) { told = append(told, s.Lines) },
	}, strings.NewReader(strings.Repeat(`{"at":"0s","request":`+someReq+"}\n", 2*progressLines+1)))
	if fmt.Sprint(told) != fmt.Sprint([]int{progressLines, 2 * progressLines}) || err != nil {
		t.Errorf("%v, %v", told, err)
	}
}

// AllOrNothing does not charge the descriptor before the one that is over.
func TestAllOrNothing(t *testing.T) {
	set := load(t, someRules+"  - {key: banned, rate_limit: {unit: minute, requests_per_unit: 0}}\n")
	in := `{"at":"0s","request":{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]},{"entries":[{"key":"banned"}]}]}}` + "\n" +
		`{"at":"0s","request":` + someReq + "}\n"
	for all, remaining := range map[bool]string{false: `"remaining":0`, true: `"remaining":1`} {
		out, _, err := simulated(t, Config{Rules: set, AllOrNothing: all}, strings.NewReader(in))
		if second := strings.Split(string(out), "\n")[1]; err != nil || !strings.Contains(second, remaining) {
			t.Errorf("%t: %v, %s", all, err, second)
		}
	}
}

// atRandom is a recording of requests to the rules of testdata/algorithms, at
// whole microseconds, which Redis sees, with a step back now and then if steps.
func atRandom(n int, steps bool) []byte {
	random := rand.New(rand.NewPCG(3, 4))
	keys := []string{"bucket", "log", "estimate", "first", "debt", "list", "user", "user", "none"}
	var b bytes.Buffer
	at := 24 * time.Hour
	for range n {
		at += time.Duration(random.Int64N(1_000_000)) * time.Microsecond
		if steps && random.IntN(20) == 0 {
			at -= time.Duration(random.Int64N(200_000_000)) * time.Microsecond
		}
		fmt.Fprintf(&b, `{"at":%q,"request":{"domain":"d","descriptors":[`, at.String())
		for i := range 1 + random.IntN(3) {
			if i > 0 {
				b.WriteByte(',')
			}
			key := keys[random.IntN(len(keys))]
			fmt.Fprintf(&b, `{"entries":[{"key":%q,"value":"a%d"}`, key, random.IntN(4))
			if key == "user" && random.IntN(2) == 0 {
				fmt.Fprintf(&b, `,{"key":"action","value":%q}`, []string{"trade", "look"}[random.IntN(2)])
			}
			b.WriteByte(']')
			switch random.IntN(8) {
			case 0:
				fmt.Fprintf(&b, `,"hitsAddend":%d`, random.IntN(4))
			case 1:
				fmt.Fprintf(&b, `,"hitsAddend":%d,"isNegativeHits":true`, random.IntN(4))
			}
			b.WriteByte('}')
		}
		b.WriteString("]}}\n")
	}
	return b.Bytes()
}

// Memory and Redis decide alike on random requests, also when the clock steps back and
// memory keeps its counters.
func TestStoresAgree(t *testing.T) {
	set := load(t, string(read(t, "testdata", "algorithms", "rules.yaml")))
	server := redistest.Start(t, redistest.Options{})
	for _, tt := range []struct {
		name       string
		steps, all bool
	}{
		{"forward", false, false},
		{"all or nothing", false, true},
		{"steps", true, false},
		{"steps, all or nothing", true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := atRandom(3000, tt.steps)
			cfg := Config{Rules: set, AllOrNothing: tt.all, AllowClockSteps: tt.steps}
			var err error
			grace := time.Duration(0)
			if tt.steps {
				grace = memory.MaxExpiryGrace
			}
			if cfg.Backend, err = memory.New(memory.Config{ExpiryGrace: grace}); err != nil {
				t.Fatal(err)
			}
			want, wantSummary, err := simulated(t, cfg, bytes.NewReader(in))
			if err != nil {
				t.Fatal(err)
			}
			store := newRedis(t, server)
			cfg.Backend, cfg.KeyPrefix = store, "simulate-1:"
			got, summary, err := simulated(t, cfg, bytes.NewReader(in))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) || !bytes.Equal(summary, wantSummary) {
				lines, gotLines, wantLines := strings.Split(string(in), "\n"), strings.Split(string(got), "\n"),
					strings.Split(string(want), "\n")
				for i := range wantLines {
					if gotLines[i] != wantLines[i] {
						t.Fatalf("line %d: %s\n Redis %s\nmemory %s", i+1, lines[i], gotLines[i], wantLines[i])
					}
				}
				t.Errorf("\n Redis %s\nmemory %s", summary, wantSummary)
			}
			server.Do(t, "FLUSHALL")
		})
	}
}

// --limits applies limits that were changed at run time.
func TestChangedLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		testfiles.Write(t, path, text)
		return path
	}
	rules := write("rules.yaml", "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n")
	var lines strings.Builder
	for i := range 8 {
		fmt.Fprintf(&lines, `{"at": "%ds", "request": {"domain": "d", "descriptors": [{"entries": [{"key": "user", `+
			`"value": "eve"}]}]}}`+"\n", i)
	}
	recording := write("recording", lines.String())
	limits := write("limits.json",
		`{"limits": [{"domain": "d", "subject": "user=eve", "limit": "x2", "until": "2020-01-01T00:00:00Z"}]}`)
	for _, tt := range []struct{ limits, want string }{
		{"", "OK: 3, OVER_LIMIT: 5"},
		{limits, "OK: 6, OVER_LIMIT: 2"},
		{rules, "is not what `ratelimit limit list --json` writes"},
	} {
		cmd := Command()
		var out bytes.Buffer
		cmd.SetOut(io.Discard)
		cmd.SetErr(&out)
		cmd.SilenceUsage = true
		cmd.SetArgs([]string{"--config", rules, "--limits", tt.limits, recording})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			fmt.Fprint(&out, err)
		}
		if !strings.Contains(out.String(), tt.want) {
			t.Errorf("--limits %q: %s, want %s", tt.limits, out.String(), tt.want)
		}
	}
}
