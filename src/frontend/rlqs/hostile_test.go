package rlqs

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/rls"
	"ratelimit/testbed/harness"
)

// expectService checks that a new stream of an honest proxy is answered.
func (f *fixture) expectService(t *testing.T, when string) {
	t.Helper()
	s := open(t, f.dial(t))
	s.report("d", "free=1")
	if got := s.receive(1); got[0] != "free=1: ALLOW_ALL" {
		t.Errorf("%s, an honest proxy got %q", when, got)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	_ = s.wait()
}

// A connection that reports new buckets without end is closed when all callers hold too much, and what it held is free
// again.
func TestBucketsWithoutEnd(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		budget := connlimit.NewMemoryBudget(4 << 20)
		cfg.MemoryBudget = budget
		f := start(t, cfg)
		s := open(t, f.dial(t))
		ended := make(chan error, 1)
		go func() { ended <- s.wait() }()
		long := strings.Repeat("v", maxBucketIDBytes-100)
		for i := 0; ; i++ {
			var usages []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage
			for j := range 10 {
				usages = append(usages, bucketUsage(map[string]string{"name": fmt.Sprint(long, i, " ", j)}, 0, 1))
			}
			if s.Send(&pb.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: usages}) != nil {
				break // The stream has ended.
			}
			if held := budget.HeldBytes(); held > budget.MaxBytes()+1<<20 {
				t.Fatalf("%d bytes are held, want at most %d and a message", held, budget.MaxBytes())
			}
		}
		if err := <-ended; status.Code(err) != codes.Unavailable && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the stream ended with %v", err)
		}
		harness.Until(t, "everything is free", func() bool {
			st := f.divider.Stats()
			return st.Proxies.Load() == 0 && st.Members.Load() == 0 && st.Buckets.Load() == 0 && budget.HeldBytes() == 0
		})
		f.expectService(t, "afterwards")
	})
}

// Numbers and durations that no honest proxy reports change nothing for others.
func TestReportsOfLargestNumbers(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		s := open(t, f.dial(t))
		for _, n := range []uint64{1 << 63, math.MaxUint64, 1<<63 - 1} {
			for _, seconds := range []int64{math.MinInt64, -1, math.MaxInt64} {
				u := bucketUsage(map[string]string{"watched": "1"}, n, n)
				u.TimeElapsed = &durationpb.Duration{Seconds: seconds, Nanos: math.MinInt32}
				s.send(&pb.RateLimitQuotaUsageReports{
					Domain:            "d",
					BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{u},
				})
			}
		}
		if got := s.receive(1); got[0] != "watched=1: ALLOW_ALL" {
			t.Errorf("%q", got)
		}
		f.expectService(t, "meanwhile")
	})
}

// A connection has a few streams at a time, whether they report or not.
func TestStreamsWithoutEnd(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		conn := f.dial(t)
		first := open(t, conn)
		first.report("d", "free=1")
		first.receive(1)
		refused := make(chan error, 100)
		for i := range cap(refused) {
			s := open(t, conn)
			if i%2 == 0 {
				s.report("d", "free=1")
			}
			go func() { refused <- s.wait() }()
		}
		for i := range cap(refused) - rls.MaxLongCalls + 1 {
			if err := <-refused; status.Code(err) != codes.ResourceExhausted {
				t.Fatalf("stream %d of those that end: %v, want ResourceExhausted", i, err)
			}
		}
		if got := f.divider.Stats().Proxies.Load(); got > rls.MaxLongCalls {
			t.Errorf("%d streams are served, want at most %d", got, rls.MaxLongCalls)
		}
		f.expectService(t, "meanwhile")
	})
}

// A proxy that reads nothing, and one that reports as fast as it can, get one answer for many reports, and delay no
// other stream.
func TestFloodOfReports(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg rls.ServerConfig) {
		f := start(t, cfg)
		deaf := open(t, f.dial(t))
		var buckets []string
		for i := range 600 { // 64 KiB
			buckets = append(buckets, fmt.Sprint("name=", strings.Repeat("v", 60), i))
		}
		flood := open(t, f.dial(t))
		go func() { _ = flood.wait() }()
		began := time.Now()
		const reports = 2000
		for i := range reports {
			flood.report("d", buckets[0]) // Package h2 ends connections with as many reports shorter than 64 bytes.
			if i%400 == 0 {
				deaf.report("d", buckets...)
			}
		}
		harness.Until(t, "all reports are read",
			func() bool { return f.divider.Stats().Reports.Load() == reports+reports/400 })
		rounds := uint64(time.Since(began)/(20*time.Millisecond)) + 2
		st := f.divider.Stats()
		if sent := st.Assignments.Load() + st.Extensions.Load(); sent > uint64(len(buckets)+1)*min(rounds, 6) {
			t.Errorf("%d assignments for %d reports of one bucket and 5 of %d", sent, reports, len(buckets))
		}
		f.expectService(t, "meanwhile")
	})
}
