package differential

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// side is one of the two programs, with its Redis and its statsd server.
type side struct {
	name      string
	path      string // of the program
	own       []string
	main, sec *redistest.Server // for all windows but seconds, and for seconds with REDIS_PERSECOND
	conns     []*redistest.Client
	sink      *sink

	proc              harness.Process
	http, grpc, debug string // addresses
	conn              *grpc.ClientConn
}

const patience = 10 * time.Second

var client = &http.Client{Timeout: patience}

func newSide(t *testing.T, name, path string, own ...string) *side {
	t.Helper()
	s := &side{name: name, path: path, own: own, sink: startSink(t)}
	s.main, s.sec = redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{})
	s.conns = []*redistest.Client{s.main.Client(t), s.sec.Client(t)}
	t.Cleanup(s.stop)
	return s
}

// start starts the program with the rules below root, and waits until it serves.
func (s *side) start(t *testing.T, root string, env environment) {
	t.Helper()
	ports := make([]string, 3)
	for i := range ports {
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	s.http, s.grpc, s.debug = "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1], "127.0.0.1:"+ports[2]
	s.proc = harness.Process{Path: s.path, Log: filepath.Join(t.TempDir(), s.name+".log"), Env: slices.Concat([]string{
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"PORT=" + ports[0], "GRPC_PORT=" + ports[1], "DEBUG_PORT=" + ports[2],
		"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + s.main.Addr, "REDIS_PERSECOND_SOCKET_TYPE=tcp",
		"REDIS_PERSECOND_URL=" + s.sec.Addr,
		"REDIS_TIMEOUT=10s", "REDIS_PERSECOND_TIMEOUT=10s", // a busy machine may take longer than this service's default
		"USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + s.sink.port, "STATS_FLUSH_INTERVAL=20ms",
	}, s.own, env.vars)}
	if err := s.proc.Start(); err != nil {
		t.Fatal(err)
	}
	good, _ := s.loads()
	harness.Await(t, harness.Deadline, s.name+" is not ready", func() error {
		if err := s.proc.Exited(); err != nil {
			return harness.Permanent{Err: err}
		}
		if now, _ := s.loads(); now == good {
			return errors.New("it has not loaded the rules")
		}
		conn, err := net.Dial("tcp", s.grpc)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	var err error
	if s.conn, err = grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
}

func (s *side) stop() {
	if s.conn != nil {
		_ = s.conn.Close() // no call is open
		s.conn = nil
		s.proc.Stop()
	}
}

// answer is what came of a request.
type answer struct {
	response *rlsv3.RateLimitResponse // nil after a failure
	code     codes.Code               // of gRPC
	http     int                      // the status over /json
	text     string                   // of a failure
}

func (a answer) String() string {
	switch {
	case a.response != nil && a.http != 0:
		return fmt.Sprintf("HTTP %d %v", a.http, a.response)
	case a.response != nil:
		return a.response.String()
	case a.http != 0:
		return fmt.Sprintf("HTTP %d %q", a.http, a.text)
	}
	return fmt.Sprintf("%v %q", a.code, a.text)
}

// ask sends a request, and returns what came of it.
func (s *side) ask(ctx context.Context, q *request, domain string) (answer, error) {
	data, err := q.wire(domain)
	if err != nil {
		return answer{}, err
	}
	if q.json {
		return s.post(ctx, q, data)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var reply []byte
	err = s.conn.Invoke(ctx, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, data, &reply,
		grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return answer{code: status.Code(err), text: status.Convert(err).Message()}, nil
	}
	a := answer{response: new(rlsv3.RateLimitResponse)}
	return a, proto.Unmarshal(reply, a.response)
}

func (s *side) post(ctx context.Context, q *request, body []byte) (answer, error) {
	method := http.MethodPost
	if q.get {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.http+"/json", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{code: codes.Unavailable, text: err.Error()}, nil // upstream drops the connection where a handler panics
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{http: resp.StatusCode, text: string(text)}
	if resp.Header.Get("Content-Type") == "application/json" {
		a.response = new(rlsv3.RateLimitResponse)
		err = protojson.Unmarshal(text, a.response)
	}
	return a, err
}

// rawCodec sends messages that are bytes already, so that they may hold what protobuf does not allow.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func (rawCodec) Name() string { return "proto" }

// counter is a key in Redis.
type counter struct {
	value string
	ttl   time.Duration
}

// readKeys returns each key with its value and the rest of its life.
const readKeys = `local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local value = redis.pcall('GET', key)
  all[#all + 1] = key
  all[#all + 1] = type(value) == 'table' and 'another type' or value or ''
  all[#all + 1] = redis.call('PTTL', key)
end
return all`

// keys returns all keys in both Redis; those of the Redis for seconds have "sec: " in front.
func (s *side) keys() (map[string]counter, error) {
	all := make(map[string]counter)
	for i, conn := range s.conns {
		reply, err := conn.Do("EVAL", readKeys, 0)
		if err != nil {
			return nil, err
		}
		list := reply.([]any)
		for n := 0; n+2 < len(list); n += 3 {
			name := []string{"", "sec: "}[i] + fmt.Sprint(list[n])
			ms, err := strconv.ParseInt(fmt.Sprint(list[n+2]), 10, 64)
			if err != nil {
				return nil, err
			}
			all[name] = counter{fmt.Sprint(list[n+1]), time.Duration(ms) * time.Millisecond}
		}
	}
	return all, nil
}

func (s *side) forget() error {
	var errs []error
	for _, conn := range s.conns {
		_, err := conn.Do("FLUSHALL")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// loads returns how many sets of rules the program has accepted and refused.
func (s *side) loads() (good, bad int64) {
	all := s.sink.snapshot(serviceStats + "config_load_")
	return sum(all, serviceStats+"config_load_success"), sum(all, serviceStats+"config_load_error")
}

// rlconfig returns the lines of /rlconfig about a domain, sorted by the names of the rules.
func (s *side) rlconfig(domain string) ([]string, error) {
	resp, err := client.Get("http://" + s.debug + "/rlconfig")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, domain+".") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(ruleName(a), ruleName(b)) })
	return lines, nil
}

// ruleName is the part of a line of /rlconfig before what the rule allows.
func ruleName(line string) string {
	end := max(strings.LastIndex(line, ": unit="), strings.LastIndex(line, ": unlimited"))
	return line[:max(end, 0)]
}
