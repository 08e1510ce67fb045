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
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/redistest"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Who waits for the answer to a line gets it, before the next one is there.
func TestAnswersBeforeItWaits(t *testing.T) {
	in, to := io.Pipe()
	from, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := Run(t.Context(), Config{Rules: load(t, someRules), Backend: openMemory(t), In: in, Name: "stdin", Out: out})
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

// What was decided is written, and the run ends although its input does not.
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
		s, err := Run(ctx, Config{Rules: load(t, someRules), Backend: openMemory(t), In: in, Name: "stdin", Out: out})
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

// failing is a store that fails from some batch on.
type failing struct {
	limiter.Backend
	good int
	err  error
}

func (f *failing) Take(ctx context.Context, b *algorithm.Batch) error {
	if f.good--; f.good < 0 {
		for i := range b.Verdicts {
			b.Verdicts[i] = algorithm.Verdict{Err: f.err}
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

	out, _, err := simulated(t, Config{Rules: load(t, someRules), Backend: &failing{openMemory(t), 2, lost}}, strings.NewReader(four))
	if !errors.Is(err, lost) || !errors.Is(err, limiter.ErrStore) || err.Error() != "requests.jsonl:3: the store did not answer: redis: gone" {
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

	for name, in := range map[string]io.Reader{"at the end": strings.NewReader(line), "on the way": iotest.OneByteReader(strings.NewReader(four))} {
		_, err := Run(t.Context(), Config{Rules: load(t, someRules), Backend: openMemory(t), In: in, Name: "stdin", Out: closed{}})
		if !errors.Is(err, io.ErrClosedPipe) || !strings.HasPrefix(err.Error(), "the output: ") {
			t.Errorf("an output that fails %s: %v", name, err)
		}
	}
}

// A month of traffic comes to the same whenever it is replayed, and to what
// counting by hand comes to.
func TestMonth(t *testing.T) {
	const every = 30 * time.Second
	lines := int(30 * 24 * time.Hour / every)
	in := recording(lines, every)
	set := load(t, "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n")
	run := func() (sum [sha256.Size]byte, s *Summary) {
		h := sha256.New()
		s, err := Run(t.Context(), Config{Rules: set, Backend: openMemory(t), In: bytes.NewReader(in), Name: "stdin", Out: h})
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
	if s.Lines != uint64(lines) || s.OK != admitted || s.Over != uint64(lines)-admitted || s.To.Sub(s.From) != time.Duration(lines-1)*every {
		t.Errorf("%+v, want %d admitted", s, admitted)
	}
	if f := s.figures[0]; f.hits != uint64(lines) || f.admitted != admitted || f.over != s.Over {
		t.Errorf("%+v", f)
	}
}

func TestProgress(t *testing.T) {
	var told []Progress
	r := &run{cfg: Config{Progress: func(p Progress) { told = append(told, p) }}, summary: newSummary(load(t, someRules))}
	r.summary.line(DefaultStart)
	for range 3 {
		r.progress() // at once, then not within a second
	}
	if len(told) != 1 || told[0].Lines != 1 || !told[0].At.Equal(DefaultStart) {
		t.Errorf("%+v", told)
	}
}

// manyCharges is a set in which one descriptor is charged to limits of every
// algorithm, whatever rule files can say.
func manyCharges(t *testing.T, allOrNone bool) *rules.Set {
	t.Helper()
	set := load(t, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 4}
    descriptors:
      - {key: bucket, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: log, rate_limit: {unit: second, requests_per_unit: 3}}
      - {key: estimate, rate_limit: {unit: second, requests_per_unit: 5}, shadow_mode: true}
      - {key: first, rate_limit: {unit: second, requests_per_unit: 6}}
`)
	list := set.Rules()
	top, bucket, log, estimate, first := list[0], list[1], list[2], list[3], list[4]
	bucket.Limit = algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Burst: 1, Period: 500 * time.Millisecond}
	log.Limit = algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 3, Period: 10 * time.Second, MinInterval: 100 * time.Millisecond}
	estimate.Limit = algorithm.Limit{Kind: algorithm.SlidingWindowCounter, Max: 2, Period: 10 * time.Second}
	first.Limit = algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 6, Period: 1500 * time.Millisecond}
	for _, r := range list[1:] {
		r.Path = top.Path // one descriptor has them all
	}
	top.Charges = []*rules.Rule{top, bucket, log, estimate, first}
	top.AllOrNone = allOrNone
	return set
}

// Each charge of a descriptor has a verdict, in order.
func TestSeveralCharges(t *testing.T) {
	store := openRedis(t, redistest.Start(t, redistest.Options{}))
	in := ""
	for _, at := range []string{"0s", "50ms", "200.0004ms", "10s"} {
		in += `{"at":"` + at + `","request":{"domain":"d","descriptors":[{"entries":[{"key":"none"}]},{"entries":[{"key":"user","value":"x"}]}]}}` + "\n"
	}
	out, summary, err := simulated(t, Config{Rules: manyCharges(t, false), Backend: store, KeyPrefix: "simulate-1:"}, strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	// After 0 s one unit of the bucket is left, at 50 ms none, and the log wants
	// 50 ms more. At 200.0004 ms, which Redis takes for 200.000, the bucket has
	// filled by 0.4 units, and is full again in 0.8 s. The estimate is in shadow
	// mode.
	want := [][]string{
		{
			`{"rule":"user","key":"d_user_x_","algorithm":"fixed_window","over":false,"limit":4,"remaining":3,"retry_after_us":null,"reset_after_us":60000000,"reasons":[]}`,
			`{"rule":"user.bucket","key":"d_user_x_","algorithm":"gcra","over":false,"limit":2,"remaining":1,"retry_after_us":null,"reset_after_us":500000,"reasons":[]}`,
			`{"rule":"user.log","key":"d_user_x_","algorithm":"sliding_window","over":false,"limit":3,"remaining":2,"retry_after_us":null,"reset_after_us":10000000,"reasons":[]}`,
			`{"rule":"user.estimate","key":"d_user_x_","algorithm":"sliding_window_counter","over":false,"limit":2,"remaining":1,"retry_after_us":null,"reset_after_us":20000000,"reasons":[]}`,
			`{"rule":"user.first","key":"d_user_x_","algorithm":"first_hit_window","over":false,"limit":6,"remaining":5,"retry_after_us":null,"reset_after_us":1500000,"reasons":[]}`,
		},
		{
			`{"rule":"user","key":"d_user_x_","algorithm":"fixed_window","over":false,"limit":4,"remaining":2,"retry_after_us":null,"reset_after_us":59950000,"reasons":[]}`,
			`{"rule":"user.bucket","key":"d_user_x_","algorithm":"gcra","over":false,"limit":2,"remaining":0,"retry_after_us":null,"reset_after_us":950000,"reasons":[]}`,
			`{"rule":"user.log","key":"d_user_x_","algorithm":"sliding_window","over":true,"limit":3,"remaining":0,"retry_after_us":50000,"reset_after_us":9950000,"reasons":["interval"]}`,
			`{"rule":"user.estimate","key":"d_user_x_","algorithm":"sliding_window_counter","over":false,"limit":2,"remaining":0,"retry_after_us":null,"reset_after_us":19950000,"reasons":[]}`,
			`{"rule":"user.first","key":"d_user_x_","algorithm":"first_hit_window","over":false,"limit":6,"remaining":4,"retry_after_us":null,"reset_after_us":1450000,"reasons":[]}`,
		},
		{
			`{"rule":"user","key":"d_user_x_","algorithm":"fixed_window","over":false,"limit":4,"remaining":1,"retry_after_us":null,"reset_after_us":59800000,"reasons":[]}`,
			`{"rule":"user.bucket","key":"d_user_x_","algorithm":"gcra","over":true,"limit":2,"remaining":0,"retry_after_us":300000,"reset_after_us":800000,"reasons":["count"]}`,
			`{"rule":"user.log","key":"d_user_x_","algorithm":"sliding_window","over":false,"limit":3,"remaining":1,"retry_after_us":null,"reset_after_us":10000000,"reasons":[]}`,
			`{"rule":"user.estimate","key":"d_user_x_","algorithm":"sliding_window_counter","over":true,"limit":2,"remaining":0,"retry_after_us":14800000,"reset_after_us":19800000,"reasons":["count"]}`,
			`{"rule":"user.first","key":"d_user_x_","algorithm":"first_hit_window","over":false,"limit":6,"remaining":3,"retry_after_us":null,"reset_after_us":1300000,"reasons":[]}`,
		},
	}
	lines := strings.Split(string(out), "\n")
	for i, list := range want {
		if verdicts := `,"verdicts":[[],[` + strings.Join(list, ",") + "]]}"; !strings.HasSuffix(lines[i], verdicts) {
			t.Errorf("line %d\n got %s\nwant %s", i+1, lines[i], verdicts)
		}
	}
	for _, want := range []string{
		"\nd.user                    4     4         0     -                             -                             d_user_x_ (4)\n",
		"\nd.user.bucket             4     3         1     2026-01-01T00:00:00.2000004Z  2026-01-01T00:00:00.2000004Z",
		"\nd.user.estimate (shadow)  4     4         2     2026-01-01T00:00:00.2000004Z  2026-01-01T00:00:10Z",
	} {
		if !strings.Contains(string(summary), want) {
			t.Errorf("no %s in\n%s", want, summary)
		}
	}
}

// Where nothing is charged unless all pass, what would have passed says so.
func TestAllOrNone(t *testing.T) {
	store := openRedis(t, redistest.Start(t, redistest.Options{}))
	in := strings.Repeat(`{"at":"0s","request":{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"x"}]}]}}`+"\n", 2)
	out, _, err := simulated(t, Config{Rules: manyCharges(t, true), Backend: store, KeyPrefix: "simulate-1:"}, strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	second := strings.Split(string(out), "\n")[1]
	for _, want := range []string{
		`{"rule":"user","key":"d_user_x_","algorithm":"fixed_window","over":false,"limit":4,"remaining":3,"retry_after_us":null,`,
		`{"rule":"user.log","key":"d_user_x_","algorithm":"sliding_window","over":true,"limit":3,"remaining":0,"retry_after_us":100000,"reset_after_us":10000000,"reasons":["interval"]}`,
	} {
		if !strings.Contains(second, want) {
			t.Errorf("no %s in\n%s", want, second)
		}
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

// Escaped keys are shown as they are, without the prefix.
func TestEscapedKeys(t *testing.T) {
	in := `{"at":"0s","request":{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a_b"}]}]}}`
	out, _, err := simulated(t, Config{Rules: load(t, someRules), EscapeKeys: true, KeyPrefix: "p:"}, strings.NewReader(in))
	if err != nil || !strings.Contains(string(out), `"key":"d_k_a%5Fb_"`) {
		t.Errorf("%v: %s", err, out)
	}
}

// Memory and Redis decide alike on what comes at random.
func TestStoresAgree(t *testing.T) {
	set := load(t, string(read(t, "testdata", "windows", "rules.yaml")))
	random := rand.New(rand.NewPCG(3, 4))
	var in bytes.Buffer
	at := time.Duration(0)
	for range 3000 {
		at += time.Duration(random.Int64N(int64(time.Second)))
		fmt.Fprintf(&in, `{"at":%q,"request":{"domain":"d","descriptors":[`, at.String())
		for i := range 1 + random.IntN(3) {
			if i > 0 {
				in.WriteByte(',')
			}
			fmt.Fprintf(&in, `{"entries":[{"key":%q,"value":"a%d"}]`, []string{"ip", "user", "shared", "staff", "banned", "none"}[random.IntN(6)], random.IntN(4))
			switch random.IntN(8) {
			case 0:
				fmt.Fprintf(&in, `,"hitsAddend":%d`, random.IntN(4))
			case 1:
				fmt.Fprintf(&in, `,"hitsAddend":%d,"isNegativeHits":true`, random.IntN(4))
			}
			in.WriteByte('}')
		}
		in.WriteString("]}}\n")
	}
	server := redistest.Start(t, redistest.Options{})
	for _, all := range []bool{false, true} {
		prefix := fmt.Sprintf("simulate-%t:", all)
		want, wantSummary, err := simulated(t, Config{Rules: set, AllOrNothing: all}, bytes.NewReader(in.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		store := openRedis(t, server)
		got, summary, err := simulated(t, Config{Rules: set, AllOrNothing: all, Backend: store, KeyPrefix: prefix}, bytes.NewReader(in.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) || !bytes.Equal(summary, wantSummary) {
			gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
			for i := range wantLines {
				if gotLines[i] != wantLines[i] {
					t.Fatalf("%t: line %d\n   Redis %s\n  memory %s", all, i+1, gotLines[i], wantLines[i])
				}
			}
			t.Errorf("%t\n   Redis %s\n  memory %s", all, summary, wantSummary)
		}
		if n, err := store.Forget(t.Context(), prefix); err != nil || n == 0 {
			t.Errorf("%d keys are deleted, %v", n, err)
		}
	}
	if left := fmt.Sprint(server.Do(t, "DBSIZE")); left != "0" {
		t.Errorf("%s keys are left: %v", left, server.Do(t, "KEYS", "*"))
	}
}
