package rls

import (
	"bytes"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
)

// wireRules have one of everything that an answer depends on.
var wireRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: day, requests_per_unit: 2, name: per-ip}
  - key: pay
    rate_limit: {unit: hour, requests_per_unit: 3, unit_multiplier: 300}
    descriptors:
      - key: user
        value: v*
        share_threshold: true
        rate_limit: {unit: second, requests_per_unit: 4294967295}
  - key: staff
    rate_limit: {unlimited: true, name: staff}
  - key: trial
    shadow_mode: true
    detailed_metric: true
    rate_limit: {unit: week, requests_per_unit: 1}
  - key: gold
    quota_mode: true
    rate_limit: {unit: month, requests_per_unit: 2}
  - key: silver
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1, replaces: [{name: per-ip}]}
  - key: api
    rate_limits:
      - {unit: second, requests_per_unit: 10, algorithm: gcra, burst: 4, name: burst}
      - {unit: day, requests_per_unit: 100, name: 'a "quoted\" übername'}
      - {period: 1500ms, requests_per_unit: 1000, algorithm: sliding_window}
  - key: none
    rate_limit: {unit: minute, requests_per_unit: 0, name: ` + strings.Repeat("long", 50) + `}
`

// headerFormat says which headers a wireFixture sends.
type headerFormat int

const (
	noHeaders headerFormat = iota
	separateHeaders
	policyHeaderFields
)

var headerFormats = []headerFormat{noHeaders, separateHeaders, policyHeaderFields}

func (h headerFormat) names() *HeaderNames {
	return []*HeaderNames{
		nil,
		{Limit: "L", Remaining: "R", Reset: strings.Repeat("reset", 40), Degraded: "D"},
		{Policies: true, Degraded: "D"},
	}[h]
}

// wireFixture is a service with counters of its own and wireRules, at a standstill of
// time.
func wireFixture(t testing.TB, headers headerFormat) *fixture {
	t.Helper()
	counters := metrics.New(metrics.Config{})
	f := startWith(t, wireRules, limiter.Config{Recorders: []limiter.Recorder{counters}})
	counters.UseRules(f.cfg.Limiter.(*limiter.Limiter).Rules())
	f.cfg.HeaderNames = headers.names()
	f.now = time.Date(2026, 1, 1, 12, 34, 56, 789, time.UTC)
	return f
}

func encode(t testing.TB, msg proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// usual are requests as clients write them.
func usual() []*pb.RateLimitRequest {
	with := func(d *common.RateLimitDescriptor, change func(*common.RateLimitDescriptor)) *common.RateLimitDescriptor {
		change(d)
		return d
	}
	override := &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 2, Unit: typev3.RateLimitUnit_HOUR}
	return []*pb.RateLimitRequest{
		request(descriptor("ip", "1")),
		request(descriptor("ip", "1"), descriptor("pay", "x"), descriptor("staff", "y"), descriptor("nobody", "z")),
		request(descriptor("pay", "x", "user", "viola")),
		request(descriptor("gold", "g"), descriptor("silver", "s"), descriptor("ip", "1")),
		request(descriptor("trial", "ü€")),
		request(descriptor("none", "")),
		{Domain: "other", Descriptors: []*common.RateLimitDescriptor{descriptor("ip", "1")}, HitsAddend: 4294967295},
		{Domain: "d", Descriptors: []*common.RateLimitDescriptor{
			with(descriptor("ip", "2"), func(d *common.RateLimitDescriptor) { d.HitsAddend = wrapperspb.UInt64(0) }),
			with(descriptor("ip", "3"), func(d *common.RateLimitDescriptor) { d.HitsAddend = wrapperspb.UInt64(1 << 63) }),
			with(descriptor("ip", "4"), func(d *common.RateLimitDescriptor) { d.IsNegativeHits = true }),
			with(descriptor("ip", "5"), func(d *common.RateLimitDescriptor) { d.Limit = override }),
			with(descriptor("ip", "6"), func(d *common.RateLimitDescriptor) {
				d.Limit = &common.RateLimitDescriptor_RateLimitOverride{Unit: 7, UnitMultiplier: wrapperspb.UInt32(3)}
			}),
		}, HitsAddend: 3},
		request(descriptor("api", "x"), descriptor("api", "y"), descriptor("ip", "1")),
		request(with(descriptor("ip", "7"), func(d *common.RateLimitDescriptor) {
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1} // no unit
		})),
		request(with(descriptor("ip", "7"), func(d *common.RateLimitDescriptor) {
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: 1, Unit: 1,
				UnitMultiplier: wrapperspb.UInt32(0),
			}
		})),
		request(&common.RateLimitDescriptor{}),
		request(),
		{},
	}
}

// odd are bytes that protobuf allows, or nearly.
func odd(t testing.TB) [][]byte {
	plain := encode(t, request(descriptor("ip", "1")))
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	field := func(number protowire.Number, content ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), join(content...))
	}
	text := func(number protowire.Number, content string) []byte { return field(number, []byte(content)) }
	number := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	domain, entry := text(1, "d"), field(1, text(1, "ip"), text(2, "1"))
	one := func(fields ...[]byte) []byte { return join(domain, field(2, entry, join(fields...))) }
	return [][]byte{
		nil,
		{0},
		plain[:len(plain)-1],
		join(plain, []byte{0x80}),
		join(plain, domain),                     // the domain twice
		join(plain, number(3, 2), number(3, 3)), // hits twice
		join(plain, number(3, 1<<32)),           // above uint32
		join(plain, bytes.Repeat([]byte{0xff}, 11)), // a varint that never ends
		join(plain, number(9, 1)),                   // unknown
		join(plain, text(200, "x")),                 // unknown, with a long tag
		join(plain, []byte{3<<3 | 5, 1, 2, 3, 4}),   // another type
		join(plain, []byte{4<<3 | 3, 4<<3 | 4}),     // a group
		join(plain, []byte{1<<3 | 3, 1<<3 | 4}),     // a group with the number of the domain
		join(plain, []byte{4<<3 | 4}),               // the end of none
		join(text(1, "\xff"), field(2, entry)),      // not UTF-8
		join(domain, field(2, field(1, text(1, "i\xc0")))),
		join(domain, field(2, field(1, text(1, "x"), text(1, "ip")))), // a key twice
		one(field(2, number(1, 5)), field(2, number(2, 3))),           // a limit in two parts
		one(field(3, number(1, 5)), field(3)),
		one(field(3, number(1, 5), number(1, 0))),
		one(number(4, 1), number(4, 0)),
		one(field(2, number(2, 1<<40))),
		one(field(2, number(1, 1), number(2, 1), field(3, number(1, 1<<33)))),
		join(domain, number(2, 1)),
		join([]byte{2<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0x0f}, entry),
		join(domain, bytes.Repeat(field(2, entry), limiter.MaxDescriptors+1)),
		join(domain, field(2, bytes.Repeat(entry, maxRequestEntries+1))),
	}
}

// strange are bytes that no library writes and that mean what they seem to.
func strange(t testing.TB) [][]byte {
	plain := encode(t, request(descriptor("ip", "1")))
	return [][]byte{
		append(plain[:len(plain):len(plain)], 0x18, 0x81, 0x80, 0x00),                  // a varint longer than it need be
		{1<<3 | 2, 1, 'd', 2<<3 | 2, 8, 1<<3 | 2, 4, 1<<3 | 2, 2, 'i', 'p', 4 << 3, 2}, // a bool of 2
		{2<<3 | 2, 6, 1<<3 | 2, 4, 2<<3 | 2, 2, 'i', 'p', 3 << 3, 0, 1<<3 | 2, 1, 'd'}, // in another order
		{1<<3 | 2, 0, 2<<3 | 2, 0}, // empty, but there
		{1<<3 | 2, 1, 'd', 2<<3 | 2, 8, 1<<3 | 2, 4, 1<<3 | 2, 2, 'i', 'p', 3<<3 | 2, 0}, // a wrapper of nothing
	}
}

// tooMany reports whether a message has more than a request may have.
func tooMany(msg *pb.RateLimitRequest) bool {
	entries := 0
	for _, d := range msg.GetDescriptors() {
		entries += len(d.GetEntries())
	}
	return len(msg.GetDescriptors()) > limiter.MaxDescriptors || entries > maxRequestEntries
}

// isMessage reports whether protobuf takes data: it has no text that is not UTF-8.
func isMessage(data []byte) bool { return proto.Unmarshal(data, new(pb.RateLimitRequest)) == nil }

// compare asks both ways. What protobuf's own reader refuses, or what has too much
// of something, must be refused as bytes, too.
func compare(t *testing.T, short, long *fixture, data []byte) {
	t.Helper()
	if !isMessage(data) { // messages hold repaired text, which has counters of its own
		short, long = wireFixture(t, noHeaders), wireFixture(t, noHeaders)
	}
	got, gotErr := short.onBytes(t, data)
	if msg, err := unmarshal(data); err != nil || tooMany(msg) {
		code := status.Code(gotErr)
		if code != codes.ResourceExhausted && (err == nil || code != codes.InvalidArgument) || len(short.failed()) == 0 {
			t.Fatalf("%.500x: got %v, %v, want an error, and to be told of it", data, got, gotErr)
		}
		return
	}
	failed := len(short.failed())
	want, wantErr := long.onMessages(t, data)
	if status.Code(gotErr) != status.Code(wantErr) ||
		status.Convert(gotErr).Message() != status.Convert(wantErr).Message() {
		t.Fatalf("%x: the error is\n%v, on messages\n%v", data, gotErr, wantErr)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("%x: the answer is\n%v, on messages\n%v", data, got, want)
	}
	if gotErr != nil && failed == 0 {
		t.Fatalf("%x: nothing was told of %v", data, gotErr)
	}
}

// A request has the same answer whether it is read as bytes or by protobuf.
func TestBytesAndMessagesAgree(t *testing.T) {
	t.Parallel()
	for _, headers := range headerFormats {
		short, long := wireFixture(t, headers), wireFixture(t, headers)
		for range 4 {
			for _, msg := range usual() {
				compare(t, short, long, encode(t, msg))
			}
			for _, data := range append(odd(t), strange(t)...) {
				compare(t, short, long, data)
			}
		}
	}
}

func FuzzBytesAndMessagesAgree(f *testing.F) {
	for _, msg := range usual() {
		f.Add(encode(f, msg), true)
	}
	for _, data := range append(odd(f), strange(f)...) {
		if len(data) < 1000 {
			f.Add(data, false)
		}
	}
	type pair struct{ short, long *fixture }
	pairs := map[bool]pair{
		false: {wireFixture(f, noHeaders), wireFixture(f, noHeaders)},
		true:  {wireFixture(f, policyHeaderFields), wireFixture(f, policyHeaderFields)},
	}
	f.Fuzz(func(t *testing.T, data []byte, headers bool) {
		for range 2 {
			compare(t, pairs[headers].short, pairs[headers].long, data)
		}
	})
}

// BenchmarkAnswer measures a call without its transport: bytes in, bytes out.
func BenchmarkAnswer(b *testing.B) {
	for _, tt := range []struct {
		name    string
		headers headerFormat
		request *pb.RateLimitRequest
	}{
		{"plain", noHeaders, usual()[0]},
		{"headers", separateHeaders, usual()[0]},
		{"policies", policyHeaderFields, usual()[0]},
		{"descriptors=4/headers", separateHeaders, usual()[1]},
		{"descriptors=4/policies", policyHeaderFields, usual()[1]},
		{"descriptors=4", noHeaders, usual()[1]},
		{"quota", noHeaders, usual()[3]},
		{"overrides", noHeaders, usual()[7]},
		{"metadata", noHeaders, usual()[0]},
	} {
		b.Run(tt.name, func(b *testing.B) {
			f := wireFixture(b, tt.headers)
			f.now, f.cfg.MetadataEnabled = time.Time{}, tt.name == "metadata"
			data := encode(b, tt.request)
			f.benchmark(b, data)
		})
	}
}
