//go:build linux

package siege

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Attacks by callers that choose long lives for their keys, leave early, or ask in ways that gRPC does not know. One of
// them is honest: it only has much in flight.
var callerAttacks = []attack{
	{
		letter: "F", name: "limits of 100 years",
		does: "`CL.THROTTLE` with new keys that live for 100 years, three times as many as fit into a Redis " +
			"with `volatile-lfu`, while 200 limits are in use",
		store: redis, rules: "- {key: banned, rate_limit: {unit: day, requests_per_unit: 1}}\n", unhurried: true,
		prepare: func(x *trial, _ *options) {
			x.server.Do(x.T, "CONFIG", "SET", "maxmemory", pick(x, "6mb", "48mb"))
			x.server.Do(x.T, "CONFIG", "SET", "maxmemory-policy", "volatile-lfu")
		}, strike: longLives,
	},
	{
		letter: "G", name: "callers that leave",
		does: "calls of 300 values of 2 KB against five of the dearest regular expressions, whose clients " +
			"close the connection",
		rules: worstRegexes() + "- {key: honest, rate_limit: {unit: hour, requests_per_unit: 1000000000}}\n", strike: leavers,
	},
	{
		letter: "K", name: "paths and timeouts that gRPC does not know",
		does:  "calls of `/…/%53houldRateLimit`, `http://evil/…`, `…?x=1`, and with timeouts of 0, of no unit and of nothing",
		rules: "- {key: once, rate_limit: {unit: year, requests_per_unit: 1}}\n", strike: unknownCalls,
	},
	{
		letter: "B", name: "honest calls in flight",
		does: "10,000 calls of 1 to 300 descriptors at once over one connection, while Redis stands still for " +
			"5 s; each gets its answer",
		store: redis, env: []string{"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, tolerant: true,
		rules: "- {key: honest, rate_limit: {unit: hour, requests_per_unit: 1000000000}}\n", strike: callsInFlight,
		kept: 96 << 20,
	},
}

// longLives floods Redis over RESP, and asks for limits that are used up.
func longLives(x *trial) {
	const limits = 200
	var banned [][2]string
	for i := range limits {
		banned = append(banned, [2]string{"banned", fmt.Sprintf("mallory%d", i)})
	}
	refused := func() (n int) {
		answer, err := x.neighbour.client.ShouldRateLimit(x.ctx, request(banned...))
		if err != nil {
			x.suspect("limits in use: %v", err)
			return limits
		}
		for _, s := range answer.GetStatuses() {
			if s.GetCode() == pb.RateLimitResponse_OVER_LIMIT {
				n++
			}
		}
		return n
	}
	refused()
	if n := refused(); n != limits {
		x.complain("%d of %d limits are used up", n, limits)
	}
	keys := pick(x, 120_000, 1_000_000)
	const writers = 4
	var all sync.WaitGroup
	var counted atomic.Int64
	for w := range writers {
		all.Go(func() {
			n, err := x.throttle(keys/writers, fmt.Sprint("key-of-mallory-", w, "-"))
			if counted.Add(int64(n)); err != nil {
				x.suspect("after %d keys: %v", n, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); all.Wait() }()
	for left := true; left; {
		select {
		case <-done:
			left = false
		case <-time.After(pick(x, 500*time.Millisecond, 2*time.Second)):
		}
		if n := refused(); n != limits {
			x.complain("%d of %d limits in use are lost", limits-n, limits)
			break
		}
	}
	info, err := x.server.Try("INFO", "stats")
	_, evicted, _ := strings.Cut(fmt.Sprint(info), "evicted_keys:")
	evicted, _, _ = strings.Cut(evicted, "\r\n")
	if err != nil || evicted == "0" {
		x.complain("the flood was too small: Redis evicted %s keys, %v", evicted, err)
	}
	x.note("%d limits in use are in force after %d keys of 100 years, and %s were evicted", limits, counted.Load(),
		evicted)
}

// throttle counts n new keys that live for 100 years, and returns how many the service has taken.
func (x *trial) throttle(n int, key string) (taken int, err error) {
	c, err := net.DialTimeout("tcp", x.service.resp, x.deadline)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(x.atMost))
	in := bufio.NewReader(c)
	const inPipeline = 200
	for i := 0; i < n; i += inPipeline {
		var b strings.Builder
		for k := range inPipeline {
			b.WriteString(array("CL.THROTTLE", fmt.Sprint(key, i+k), "0", "1", "3153600000"))
		}
		if _, err := io.WriteString(c, b.String()); err != nil {
			return taken, err
		}
		for range inPipeline {
			line, err := in.ReadString('\n')
			for k := 0; k < 5 && err == nil && line[0] == '*'; k++ { // else it is an error, as when Redis is slow
				_, err = in.ReadString('\n')
			}
			if err != nil {
				return taken, err
			}
			if line[0] == '*' {
				taken++
			}
		}
	}
	return taken, nil
}

// worstRegexes are five expressions at the bounds of what rules may have. Each value is compared for a long time.
func worstRegexes() string {
	var b strings.Builder
	for i := range 5 {
		fmt.Fprintf(&b, "- {key: k, regex: '(?:x?){490}y%d$', rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	return b.String()
}

// leavers measures what a call costs whose client has left, and how long others' large calls take.
func leavers(x *trial) {
	var values []string
	for i := range 300 {
		text := fmt.Sprint(i)
		values = append(values, text+strings.Repeat("x", 2048-len(text)))
	}
	ask, content := jsonCall("k", values), callOf("k", values)
	within := pick(x, time.Second, 3*time.Second)
	idle, err := x.cpuWithin(within)
	if err != nil {
		return // it is gone, and that is noticed
	}
	for name, leave := range map[string]func() error{
		"/json":       func() error { return x.leaveHTTP(ask) },
		"gRPC":        func() error { return x.leaveGRPC(content, false) },
		"gRPC, reset": func() error { return x.leaveGRPC(content, true) },
	} {
		if err := leave(); err != nil {
			x.suspect("%s: %v", name, err)
			continue
		}
		spent, err := x.cpuWithin(within)
		if err != nil {
			return
		}
		x.note("%s: %.2f s of CPU in the %v after the client left, %.2f before", name, spent.Seconds(), within,
			idle.Seconds())
		if spent-idle > 300*time.Millisecond {
			x.suspect("%s: %v of CPU in the %v after the client left, want at most 0.3 s more than the %v before", name, spent,
				within, idle)
		}
	}
	x.honestAmongLeavers(ask, content)
}

// honestAmongLeavers makes large calls while eight callers leave again and again.
func (x *trial) honestAmongLeavers(ask string, content []byte) {
	end := time.Now().Add(pick(x, 2*time.Second, 15*time.Second))
	var all sync.WaitGroup
	var left atomic.Int64
	for i := range 8 {
		all.Go(func() {
			for time.Now().Before(end) {
				err := error(nil)
				if i%2 == 0 {
					err = x.leaveHTTP(ask)
				} else {
					err = x.leaveGRPC(content, i%4 == 1)
				}
				if err == nil {
					left.Add(1)
				}
			}
		})
	}
	var honest []string
	for i := range 300 {
		honest = append(honest, fmt.Sprint("value ", i))
	}
	large, longest, asked := jsonCall("honest", honest), time.Duration(0), 0
	for time.Now().Before(end) {
		begun := time.Now()
		resp, err := x.service.client.Post("http://"+x.service.http+"/json", "application/json",
			strings.NewReader(large[strings.Index(large, "{"):]))
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = errors.New(resp.Status)
			}
		}
		if err != nil {
			x.suspect("a large call of another caller: %v", err)
		}
		longest, asked = max(longest, time.Since(begun)), asked+1
	}
	all.Wait()
	x.note("%d calls were left; %d large calls of others took up to %v", left.Load(), asked,
		longest.Round(time.Millisecond))
	if most := pick(x, 2*time.Second, 500*time.Millisecond) + forgivenNaps*x.machine.late(); longest > most {
		x.suspect("a large call of another caller took %v, want at most %v", longest, most)
	}
}

// cpuWithin is the CPU time of the service in the next time of that length.
func (x *trial) cpuWithin(length time.Duration) (time.Duration, error) {
	before, err := x.service.proc.CPU()
	if err != nil {
		return 0, err
	}
	time.Sleep(length)
	after, err := x.service.proc.CPU()
	return after - before, err
}

// aWhile is how long a caller stays that leaves: long enough for its call to arrive, and shorter than the call.
const aWhile = 30 * time.Millisecond

// leaveHTTP sends a request of HTTP and leaves.
func (x *trial) leaveHTTP(ask string) error {
	c, err := net.DialTimeout("tcp", x.service.http, x.deadline)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(x.patience()))
	_, err = io.WriteString(c, ask)
	time.Sleep(aWhile)
	return err
}

// leaveGRPC makes a call and leaves: the stream is reset, or the connection closed.
func (x *trial) leaveGRPC(content []byte, reset bool) error {
	w, err := dialWire(x.service.grpc)
	if err != nil {
		return err
	}
	defer func() { _ = w.conn.Close() }()
	_ = w.conn.SetDeadline(time.Now().Add(x.patience()))
	go func() { _ = w.read() }()
	stream, err := w.send(shouldRateLimit, content)
	if err != nil {
		return err
	}
	time.Sleep(aWhile)
	if !reset {
		return nil
	}
	err = w.write(func() error { return w.f.WriteRSTStream(stream, http2.ErrCodeCancel) })
	return errors.Join(err, w.ping())
}

// jsonCall is a POST of /json with a descriptor for each value.
func jsonCall(key string, values []string) string {
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type list struct {
		Entries []entry `json:"entries"`
	}
	var lists []list
	for _, value := range values {
		lists = append(lists, list{[]entry{{key, value}}})
	}
	body, err := json.Marshal(map[string]any{"domain": "siege", "descriptors": lists})
	if err != nil {
		panic(err) // texts have no other form
	}
	return fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
}

// callOf is a RateLimitRequest with a descriptor for each value.
func callOf(key string, values []string) []byte {
	var list []string
	for _, value := range values {
		list = append(list, descriptor(key, value))
	}
	return question("siege", list...)
}

// unknownCalls are refused as grpc-go does, and charge nothing.
func unknownCalls(x *trial) {
	const unimplemented, late, invalid = "12", "4", "13"
	type odd struct{ path, timeout, want string }
	calls := []odd{
		{strings.Replace(shouldRateLimit, "/S", "/%53", 1), "", unimplemented},
		{"http://evil" + shouldRateLimit, "", unimplemented},
		{shouldRateLimit + "?x=1", "", unimplemented},
		{shouldRateLimit, "0n", late},
		{shouldRateLimit, "0S", late},
		{shouldRateLimit, "1x", invalid},
		{shouldRateLimit, "-1S", invalid},
		{shouldRateLimit, "123456789S", invalid},
	}
	list := x.wires(pick(x, 2, 8), true)
	defer hangUp(list)
	content := message(false, same(1, "once", "a"))
	var made atomic.Int64
	together(list, func(_ int, w *wire) {
		for n := range pick(x, 200, 5000) {
			c := calls[n%len(calls)]
			var headers []string
			if c.timeout != "" {
				headers = []string{"grpc-timeout", c.timeout}
			}
			stream, err := w.open(c.path, headers...)
			if err == nil {
				err = w.data(stream, content, true)
			}
			var r *reply
			if err == nil {
				r, err = w.await(stream)
			}
			if err != nil {
				x.suspect("%v: %v", c, err)
				return
			}
			if _, named := r.headers["trailer"]; r.headers["grpc-status"] != c.want || named {
				x.complain("%v is answered %v", c, r.headers)
			}
			made.Add(1)
		}
	})
	if code, err := x.ask("siege", "once", "a"); err != nil || code != pb.RateLimitResponse_OK {
		x.complain("the calls were charged: the next one is answered %v, %v", code, err)
	}
	x.note("%d calls were refused", made.Load())
}

// callsInFlight is a client that does nothing wrong.
func callsInFlight(x *trial) {
	client := dial(x.T, x.service.grpc)
	var requests []*pb.RateLimitRequest
	for _, n := range []int{1, 20, 3, 100, 1, 8, 2, 1, 300, 1} {
		var entries [][2]string
		for i := range n {
			entries = append(entries, [2]string{"honest", fmt.Sprint(i)})
		}
		requests = append(requests, request(entries...))
	}
	x.server.Pause()
	defer x.server.Resume()
	time.AfterFunc(pick(x, time.Second, 5*time.Second), x.server.Resume)
	ctx, cancel := context.WithTimeout(x.ctx, x.atMost/2)
	defer cancel()
	var answered, refused atomic.Int64
	var all sync.WaitGroup
	for i := range pick(x, 2000, 10_000) {
		all.Go(func() {
			_, err := client.ShouldRateLimit(ctx, requests[i%len(requests)])
			switch {
			case err == nil:
				answered.Add(1)
			case status.Code(err) == codes.ResourceExhausted ||
				status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "store"):
				refused.Add(1)
			default:
				x.complain("a call was neither answered nor refused on its own: %v", err)
			}
		})
	}
	all.Wait()
	x.note("%d calls were answered, %d refused one by one", answered.Load(), refused.Load())
}
