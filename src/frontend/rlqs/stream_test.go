package rlqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRules are in windows of a year, which do not end during a test.
const testRules = `
domain: d
quota_buckets: true
descriptors:
  - key: name
    rate_limit: {unit: year, requests_per_unit: 1000}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: watched, rate_limit: {unit: year, requests_per_unit: 10}, shadow_mode: true}
  - key: env
    descriptors: [{key: name, rate_limit: {unit: year, requests_per_unit: 400}}]
`

// otherRules have a domain without quotas.
const otherRules = "domain: other\ndescriptors: [{key: name, rate_limit: {unit: year, requests_per_unit: 1000}}]"

// fixture is a gRPC server of quotas over memory.
type fixture struct {
	limiter *limiter.Limiter
	divider *quota.Divider
	server  *rls.Server
	addr    string
	served  chan error
}

// eachEngine runs test with a server of package h2, and with one of grpc-go.
func eachEngine(t *testing.T, test func(t *testing.T, cfg rls.ServerConfig)) {
	t.Helper()
	t.Parallel()
	for name, grpcGo := range map[string]bool{"h2": false, "grpc-go": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, rls.ServerConfig{UseGRPCGo: grpcGo})
		})
	}
}

// start serves testRules and otherRules until the test ends.
func start(t *testing.T, cfg rls.ServerConfig) *fixture {
	t.Helper()
	f := startWithoutRules(t, cfg)
	f.useRules(t, testRules, otherRules)
	return f
}

func startWithoutRules(t *testing.T, cfg rls.ServerConfig) *fixture {
	t.Helper()
	store := limitertest.Store(t, memory.Config{})
	f := &fixture{limiter: limiter.New(limiter.Config{Backend: store}), served: make(chan error, 1)}
	f.divider = quota.New(quota.Config{Limiter: f.limiter, Backend: store})
	cfg.Register = New(Config{Divider: f.divider, Rules: f.limiter.Rules}).Register
	f.server = rls.NewServer(rls.New(rls.Config{Limiter: f.limiter}), cfg)
	l := harness.Listen(t)
	f.addr = l.Addr().String()
	go func() { f.served <- f.server.Serve(l) }()
	ctx, cancel := context.WithCancel(context.Background())
	divided := make(chan error, 1)
	go func() { divided <- f.divider.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		f.server.Shutdown(ctx)
		if err := errors.Join(<-divided, <-f.served); err != nil {
			t.Error(err)
		}
		close(f.served)
	})
	return f
}

func (f *fixture) useRules(t *testing.T, texts ...string) {
	t.Helper()
	var files []filerules.File
	for i, text := range texts {
		files = append(files, filerules.File{Name: fmt.Sprint(i, ".yaml"), Data: []byte(text)})
	}
	set := limitertest.Load(t, files)
	f.limiter.UseRules(set)
}

// stream is a proxy's stream.
type stream struct {
	pb.RateLimitQuotaService_StreamRateLimitQuotasClient
	t *testing.T
}

// dial returns a connection that is closed when the test ends.
func (f *fixture) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// open starts a stream. It has to end before harness.Deadline.
func open(t *testing.T, conn *grpc.ClientConn) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Deadline)
	t.Cleanup(cancel)
	// after the end of a connection
	s, err := pb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return &stream{s, t}
}

// report sends a report of 1 refused request for each bucket. A bucket is written "key=value,key=value".
func (s *stream) report(domain string, buckets ...string) {
	s.t.Helper()
	usages := make([]*pb.RateLimitQuotaUsageReports_BucketQuotaUsage, 0, len(buckets))
	for _, b := range buckets {
		usages = append(usages, bucketUsage(parseBucket(b), 0, 1))
	}
	s.send(&pb.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: usages})
}

func (s *stream) send(report *pb.RateLimitQuotaUsageReports) {
	s.t.Helper()
	if err := s.Send(report); err != nil && !errors.Is(err, io.EOF) { // Recv returns why the stream has ended.
		s.t.Fatal(err)
	}
}

func parseBucket(text string) map[string]string {
	bucket := make(map[string]string)
	for entry := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(entry, "="); ok {
			bucket[key] = value
		}
	}
	return bucket
}

// receive returns the next n actions, sorted, such as "env=prod,name=web: 20". The DENY_ALL before units is left out.
func (s *stream) receive(n int) (actions []string) {
	s.t.Helper()
	for len(actions) < n {
		message, err := s.Recv()
		if err != nil {
			s.t.Fatalf("after %q: %v", actions, err)
		}
		list := message.BucketAction
		for i, a := range list {
			strategy := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
			if strategy.GetBlanketRule() == typepb.RateLimitStrategy_DENY_ALL && i+1 < len(list) &&
				proto.Equal(list[i+1].BucketId, a.BucketId) {
				continue
			}
			actions = append(actions, bucketText(a.BucketId)+": "+actionText(a))
		}
	}
	slices.Sort(actions)
	return actions
}

func bucketText(id *pb.BucketId) string {
	var entries []string
	for key, value := range id.GetBucket() {
		entries = append(entries, key+"="+value)
	}
	slices.Sort(entries)
	return strings.Join(entries, ",")
}

func actionText(a *pb.RateLimitQuotaResponse_BucketAction) string {
	if a.GetAbandonAction() != nil {
		return "abandon"
	}
	strategy := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
	if tokens := strategy.GetTokenBucket(); tokens != nil {
		return fmt.Sprint(tokens.MaxTokens)
	}
	return strategy.GetBlanketRule().String()
}

// wait returns how the stream ends. It drops messages before that.
func (s *stream) wait() error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

// awaitProxies waits until there are so many streams.
func (f *fixture) awaitProxies(t *testing.T, want int64) {
	t.Helper()
	harness.Until(t, fmt.Sprint(want, " proxies"), func() bool { return f.divider.Stats().Proxies.Load() == want })
}

// A first report is answered at once, with an action for each of its buckets. A proxy that is new gets a twentieth of a
// long window.
func TestFirstReport(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		s := open(t, f.dial(t))
		for i, step := range []struct{ report, want []string }{
			{[]string{"name=web"}, []string{"name=web: 50"}},
			{[]string{"env=prod,name=web"}, []string{"env=prod,name=web: 20"}},
			{
				[]string{"closed=1", "free=1", "watched=1"},
				[]string{"closed=1: DENY_ALL", "free=1: ALLOW_ALL", "watched=1: ALLOW_ALL"},
			},
			// No rule matches.
			{[]string{"unknown=1", "name=web,path=/"}, []string{"name=web,path=/: ALLOW_ALL", "unknown=1: ALLOW_ALL"}},
			{[]string{"name=a", "name=b"}, []string{"name=a: 50", "name=b: 50"}},
		} {
			s.report("d", step.report...)
			if got := s.receive(len(step.want)); !slices.Equal(got, step.want) {
				t.Errorf("step %d: %q, want %q", i, got, step.want)
			}
		}
		st := f.divider.Stats()
		if reports := st.Reports.Load(); reports != 5 {
			t.Errorf("%d reports were counted, want 5", reports)
		}
		// Two assignments of one report may need two.
		harness.Until(t, "5 responses are counted", func() bool { return st.Responses.Load() >= 5 })
	})
}

// A stream with a report that makes no sense ends with a reason. Other streams of its connection live on.
func TestRefusedReports(t *testing.T) {
	web := bucketUsage(parseBucket("name=web"), 0, 1)
	long := bucketUsage(map[string]string{"name": strings.Repeat("x", maxBucketIDBytes)}, 0, 1)
	many := make(map[string]string)
	for i := range maxBucketEntries + 1 {
		many[fmt.Sprint(i)] = ""
	}
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		conn := f.dial(t)
		neighbour := open(t, conn)
		neighbour.report("d", "name=neighbour")
		neighbour.receive(1)
		for _, tt := range []struct {
			domain string
			usage  *pb.RateLimitQuotaUsageReports_BucketQuotaUsage
			code   codes.Code
			want   string
		}{
			{"", web, codes.InvalidArgument, "the first report of the stream has no domain"},
			{"nowhere", web, codes.FailedPrecondition, `the domain "nowhere" has no rules`},
			{"other", web, codes.FailedPrecondition, "the rules of the domain \"other\" have no `quota_buckets: true`"},
			{"d", bucketUsage(nil, 0, 1), codes.InvalidArgument, "a usage has no bucket_id, or an empty one"},
			{"d", long, codes.InvalidArgument, "a bucket_id has 4108 bytes, at most 4096 are allowed"},
			{"d", bucketUsage(many, 0, 1), codes.InvalidArgument, "a bucket_id has more than 64 entries"},
		} {
			s := open(t, conn)
			s.send(&pb.RateLimitQuotaUsageReports{
				Domain:            tt.domain,
				BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{tt.usage},
			})
			if got := status.Convert(s.wait()); got.Code() != tt.code || got.Message() != tt.want {
				t.Errorf("domain %q, %.100v: %v: %s", tt.domain, tt.usage, got.Code(), got.Message())
			}
		}
		for _, first := range []bool{true, false} { // A report is bounded as the first one of a stream, and later.
			s := open(t, conn)
			if !first {
				s.report("d", "name=web")
			}
			s.report("d", slices.Repeat([]string{"name=" + strings.Repeat("x", 1000)}, 70)...)
			got := status.Convert(s.wait())
			if got.Code() != codes.ResourceExhausted ||
				!strings.HasSuffix(got.Message(),
					" bytes, at most 65536 are allowed: raise QUOTA_MAX_REPORT_BYTES, or let proxies have fewer quota buckets") {
				t.Errorf("a long report: %v", got)
			}
		}
		s := open(t, conn)
		s.report("d", "name=web")
		s.report("other", "name=web")
		want := `a stream is for one domain: it began with "d", and now reports for "other"`
		if got := status.Convert(s.wait()); got.Code() != codes.InvalidArgument || got.Message() != want {
			t.Errorf("a second domain: %v, want %s", got, want)
		}
		neighbour.report("", "name=alive") // Only the first report needs the domain.
		if got := neighbour.receive(1); got[0] != "name=alive: 50" {
			t.Errorf("the other stream got %q", got)
		}
		f.awaitProxies(t, 1)
	})
}

// Until rules are loaded, streams are refused in the way that makes clients try again.
func TestWithoutRules(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := startWithoutRules(t, cfg)
		conn := f.dial(t)
		s := open(t, conn)
		s.report("d", "name=web")
		if got := status.Convert(s.wait()); got.Code() != codes.Unavailable || got.Message() != "no rules are loaded yet" {
			t.Errorf("%v", got)
		}
		f.useRules(t, testRules)
		s = open(t, conn)
		s.report("d", "name=web")
		s.receive(1)
	})
}

// A stream ends when a reload takes quotas away from its domain.
func TestReloadWithoutQuotas(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		s := open(t, f.dial(t))
		s.report("d", "name=web")
		s.receive(1)
		f.useRules(t, strings.Replace(testRules, "quota_buckets: true", "", 1))
		s.report("d", "name=web")
		if got := status.Convert(s.wait()); got.Code() != codes.FailedPrecondition ||
			!strings.Contains(got.Message(), "have no `quota_buckets: true`") {
			t.Errorf("%v", got)
		}
		f.awaitProxies(t, 0)
	})
}

// A proxy that ends its stream leaves its buckets. Its units stay charged, as it may still use them. The next stream
// gets others.
func TestReconnect(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		for i, step := range []struct {
			end       func(conn *grpc.ClientConn, s *stream)
			remaining uint64
		}{
			{func(_ *grpc.ClientConn, s *stream) {
				if err := errors.Join(s.CloseSend(), s.wait()); !errors.Is(err, io.EOF) {
					t.Errorf("a stream that its client has closed ends with %v, want OK", err)
				}
			}, 950},
			{func(conn *grpc.ClientConn, _ *stream) {
				s := open(t, conn)
				if err := errors.Join(s.CloseSend(), s.wait()); !errors.Is(err, io.EOF) {
					t.Errorf("a stream without a report ends with %v, want OK", err)
				}
				_ = conn.Close()
			}, 900},
			{func(*grpc.ClientConn, *stream) {}, 850},
		} {
			conn := f.dial(t)
			s := open(t, conn)
			s.report("d", "name=web")
			if got := s.receive(1); got[0] != "name=web: 50" {
				t.Errorf("stream %d got %q", i, got)
			}
			if got := f.remaining(t, "name", "web"); got != step.remaining {
				t.Errorf("with stream %d, %d units are left for others, want %d", i, got, step.remaining)
			}
			f.awaitProxies(t, 1)
			step.end(conn, s)
		}
	})
}

// remaining returns how many requests with an entry may still pass.
func (f *fixture) remaining(t *testing.T, key, value string) uint64 {
	t.Helper()
	var a limiter.Answer
	err := f.limiter.Check(t.Context(), &limiter.Request{Domain: []byte("d"), Descriptors: []limiter.Descriptor{
		{Entries: []rules.Entry{{Key: []byte(key), Value: []byte(value)}}, HasAmount: true},
	}}, &a)
	if err != nil {
		t.Fatal(err)
	}
	return a.Statuses[0].BindingCharge.Verdict.Remaining
}

// When the server stops, it ends all streams, and takes no new ones.
func TestShutdown(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		conn := f.dial(t)
		streams := []*stream{open(t, conn), open(t, conn), open(t, f.dial(t))}
		for _, s := range streams {
			s.report("d", "name=web")
			s.receive(1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), harness.Deadline)
		defer cancel()
		f.server.Shutdown(ctx)
		if ctx.Err() != nil {
			t.Error("the server waits for streams")
		}
		for i, s := range streams {
			if err := s.wait(); status.Code(err) != codes.Unavailable {
				t.Errorf("stream %d ends with %v, want Unavailable", i, err)
			}
		}
		if _, err := pb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context()); status.Code(
			err) != codes.Unavailable {
			t.Errorf("a new stream: %v, want Unavailable", err)
		}
		f.awaitProxies(t, 0)
	})
}

// A connection that is too old ends with its streams. Clients connect again by themselves.
func TestConnectionAge(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		cfg.MaxConnectionAge, cfg.MaxConnectionAgeGrace = 500*time.Millisecond, 500*time.Millisecond
		f := start(t, cfg)
		conn := f.dial(t)
		s := open(t, conn)
		s.report("d", "name=web")
		s.receive(1)
		if err := s.wait(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ends with %v, want Unavailable", err)
		}
		s = open(t, conn)
		s.report("d", "name=web")
		s.receive(1)
		f.awaitProxies(t, 1)
	})
}
