package monitoring

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

const repository = "../.."

var full = flag.Bool("full", false, "break services until each alert fires; takes three minutes")

// TestMain lets faults run beside each other: they mostly wait, however many cores there are.
func TestMain(m *testing.M) {
	harness.RunTests(m, func() (err error) {
		if !*full {
			return nil
		}
		_, err = harness.BuiltService()
		return errors.Join(err, flag.Set("test.parallel", "6"), harness.MissingProgramsFail())
	})
}

// read returns a file of examples/monitoring.
func read(t *testing.T, name string) string {
	t.Helper()
	text := testfiles.Read(t, filepath.Join(repository, "examples", "monitoring", name))
	return string(text)
}

// service is a running service.
type service struct{ *harness.Service }

// startService starts the service with a rule file and these variables, and waits until it listens. It is stopped at
// the end of the test.
func startService(t *testing.T, rules string, env ...string) *service {
	t.Helper()
	s := &service{harness.NewService(t, append([]string{"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"}, env...)...)}
	if rules != "" {
		s.write(t, rules)
	}
	s.Start(t, "http", "grpc", "prometheus")
	return s
}

// write puts a rule file in force.
func (s *service) write(t *testing.T, rules string) {
	t.Helper()
	s.WriteRules(t, "rules.yaml", rules)
}

// traffic calls ask in an endless loop, every pause, until the returned function is called or the test ends.
func traffic(t *testing.T, pause time.Duration, ask func(n int)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ctx.Err() == nil; n++ {
			ask(n)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// ask sends a request over JSON about descriptors, each with entries such as ip=1,id=2. Errors are what faults cause.
func (s *service) ask(domain string, descriptors ...string) {
	var list []string
	for _, d := range descriptors {
		var entries []string
		for entry := range strings.SplitSeq(d, ",") {
			key, value, _ := strings.Cut(entry, "=")
			entries = append(entries, fmt.Sprintf(`{"key":%q,"value":%q}`, key, value))
		}
		list = append(list, `{"entries":[`+strings.Join(entries, ",")+`]}`)
	}
	body := fmt.Sprintf(`{"domain":%q,"descriptors":[%s]}`, domain, strings.Join(list, ","))
	if resp, err := web.Post("http://"+s.Addrs["http"]+"/json", "application/json", strings.NewReader(body)); err == nil {
		_ = resp.Body.Close()
	}
}

// dial connects to the gRPC port.
func (s *service) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.Addrs["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// proxy opens a stream of a proxy, and returns a function that reports a bucket a=value.
func (s *service) proxy(t *testing.T, domain string) (report func(value string, admitted, denied uint64)) {
	t.Helper()
	stream, err := pb.NewRateLimitQuotaServiceClient(s.dial(t)).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	return func(value string, admitted, denied uint64) {
		_ = stream.Send(&pb.RateLimitQuotaUsageReports{
			Domain: domain,
			BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
				{
					BucketId: &pb.BucketId{Bucket: map[string]string{"a": value}}, TimeElapsed: durationpb.New(200 * time.Millisecond),
					NumRequestsAllowed: admitted, NumRequestsDenied: denied,
				},
			},
		})
	}
}
