package rlqs

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
)

// usage is what a report says of a bucket.
type usage struct {
	bucket          map[string]string
	allowed, denied uint64
}

// readUsages returns what reportReader reads.
func readUsages(message []byte) (usages []usage, err error) {
	r := reportReader{fields: rls.Fields{Message: message}}
	for r.next() {
		list, err := r.entries()
		if errors.Is(err, errEmptyID) {
			list, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !slices.IsSortedFunc(list, func(a, b rules.Entry) int { return cmp.Compare(string(a.Key), string(b.Key)) }) {
			return nil, errors.New("entries are not sorted")
		}
		u := usage{map[string]string{}, r.allowed, r.denied}
		for _, e := range list {
			u.bucket[string(e.Key)] = string(e.Value)
		}
		usages = append(usages, u)
	}
	return usages, r.err
}

func sameUsage(u usage, want *pb.RateLimitQuotaUsageReports_BucketQuotaUsage) bool {
	return u.allowed == want.NumRequestsAllowed && u.denied == want.NumRequestsDenied &&
		maps.Equal(u.bucket, want.GetBucketId().GetBucket())
}

func report(t testing.TB, domain string, usages ...*pb.RateLimitQuotaUsageReports_BucketQuotaUsage) []byte {
	t.Helper()
	message, err := proto.Marshal(&pb.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: usages})
	if err != nil {
		t.Fatal(err)
	}
	return message
}

func bucketUsage(bucket map[string]string, allowed, denied uint64) *pb.RateLimitQuotaUsageReports_BucketQuotaUsage {
	return &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: &pb.BucketId{Bucket: bucket}, NumRequestsAllowed: allowed, NumRequestsDenied: denied,
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	want := []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		bucketUsage(map[string]string{"name": "web", "env": "prod"}, 3, 4),
		bucketUsage(map[string]string{"": ""}, 1<<64-1, 1<<63),
		bucketUsage(nil, 1, 0),
	}
	message := report(t, "d", want...)
	if got := domainField(message); string(got) != "d" {
		t.Errorf("domain %q", got)
	}
	got, err := readUsages(message)
	if err != nil || !slices.EqualFunc(got, want, sameUsage) {
		t.Errorf("read %+v, %v; want %v", got, err, want)
	}
}

func TestReportsOutOfBounds(t *testing.T) {
	t.Parallel()
	many := make(map[string]string)
	for i := range maxBucketEntries + 1 {
		many[strings.Repeat("k", i+1)] = ""
	}
	for name, tt := range map[string]struct {
		message []byte
		want    string
	}{
		"an id too long": {report(t, "d",
			bucketUsage(map[string]string{"k": strings.Repeat("v", maxBucketIDBytes)}, 1, 0)), "bytes, at most"},
		"too many entries":     {report(t, "d", bucketUsage(many, 1, 0)), "more than 64 entries"},
		"not a message":        {[]byte("hello"), "malformed"},
		"a usage cut off":      {[]byte{2<<3 | 2, 3, 1<<3 | 2, 9, 9}, "malformed"},
		"an id that is no map": {[]byte{2<<3 | 2, 4, 1<<3 | 2, 2, 0xff, 0xff}, "malformed"},
	} {
		if _, err := readUsages(tt.message); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
}

// FuzzReports compares the reader with the generated code. What only the reader accepts is not UTF-8. A message field
// that comes twice is merged by the generated code, so the usages are compared after it has written them again.
func FuzzReports(f *testing.F) {
	f.Add(report(f, "d", bucketUsage(map[string]string{"name": "web", "env": "prod"}, 3, 4), bucketUsage(nil, 1, 0)))
	f.Add([]byte{2<<3 | 2, 3, 1<<3 | 2, 9, 9})
	f.Fuzz(func(t *testing.T, message []byte) {
		got, err := readUsages(message)
		var want pb.RateLimitQuotaUsageReports
		if err != nil || proto.Unmarshal(message, &want) != nil {
			return
		}
		if len(got) != len(want.BucketQuotaUsages) || string(domainField(message)) != want.Domain {
			t.Fatalf("%d usages of %q, want %d of %q", len(got), domainField(message), len(want.BucketQuotaUsages), want.Domain)
		}
		again, err := readUsages(report(t, want.Domain, want.BucketQuotaUsages...))
		if err != nil || !slices.EqualFunc(again, want.BucketQuotaUsages, sameUsage) {
			t.Fatalf("read %+v, %v; want %v", again, err, want.BucketQuotaUsages)
		}
	})
}

func TestActions(t *testing.T) {
	t.Parallel()
	id, err := proto.Marshal(&pb.BucketId{Bucket: map[string]string{"name": "web"}})
	if err != nil {
		t.Fatal(err)
	}
	const deny, allow = "DENY_ALL", "ALLOW_ALL"
	for name, tt := range map[string]struct {
		assignment quota.Assignment
		want       []string // the blanket rules, or "units".
	}{
		"units":     {quota.Assignment{Units: 1<<32 - 1, Serial: 7, TTL: 11 * time.Second}, []string{deny, "units"}},
		"extension": {quota.Assignment{Units: 5, Serial: 1<<32 - 1, IsExtension: true, TTL: time.Second}, []string{"units"}},
		"allow all": {quota.Assignment{Action: quota.AllowAll, TTL: time.Second}, []string{allow}},
		"deny all":  {quota.Assignment{Action: quota.DenyAll, TTL: time.Second}, []string{deny}},
		"abandon":   {quota.Assignment{Action: quota.Abandon}, []string{"abandon"}},
	} {
		tt.assignment.Bucket = id
		var got pb.RateLimitQuotaResponse
		if err := proto.Unmarshal(appendActions(nil, &tt.assignment), &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var actions []string
		for _, a := range got.BucketAction {
			actions = append(actions, describe(t, a, &tt.assignment))
		}
		if !slices.Equal(actions, tt.want) {
			t.Errorf("%s: %v, want %v", name, actions, tt.want)
		}
	}
}

// describe names an action, after it has compared its numbers with the assignment.
func describe(t *testing.T, action *pb.RateLimitQuotaResponse_BucketAction, a *quota.Assignment) string {
	t.Helper()
	if action.GetBucketId().GetBucket()["name"] != "web" {
		t.Errorf("bucket %v", action.GetBucketId())
	}
	if action.GetAbandonAction() != nil {
		return "abandon"
	}
	assignment := action.GetQuotaAssignmentAction()
	if ttl := assignment.GetAssignmentTimeToLive().AsDuration(); ttl != a.TTL {
		t.Errorf("time to live %v, want %v", ttl, a.TTL)
	}
	strategy := assignment.GetRateLimitStrategy()
	b, isTokens := strategy.GetStrategy().(*typepb.RateLimitStrategy_TokenBucket)
	if !isTokens {
		return strategy.GetBlanketRule().String()
	}
	if tokens := b.TokenBucket; tokens.MaxTokens != a.Units || tokens.TokensPerFill.GetValue() != 1 ||
		tokens.FillInterval.Seconds != refillTime {
		t.Errorf("token bucket %v, want %d units", tokens, a.Units)
	}
	return "units"
}
