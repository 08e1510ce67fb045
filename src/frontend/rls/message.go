package rls

import (
	"math"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// call is the memory of one call, used again for the next.
type call struct {
	buf     mem.Buffer // what came off the wire; nil if it came as a message
	req     limiter.Request
	answer  limiter.Answer
	text    []byte // all strings of the message, one after the other; of bytes, those that were repaired
	entries []rules.Entry
	large   bool // of Service.largePool
}

// Calls and large calls keep memory of these lengths for the next: large ones what
// limiter.MaxDescriptors need with a few entries and one limit each, where append makes
// more room than is used.
const (
	maxKept        = 64 << 10 // bytes of texts
	maxKeptEntries = 4 * limiter.MaxDescriptors
	maxKeptList    = 2 * limiter.MaxDescriptors
	smallShare     = 4 // calls keep this part of it
)

// fits reports whether c may be kept.
func (c *call) fits() bool {
	share := smallShare
	if c.large {
		share = 1
	}
	return c.answer.Reset(maxKeptList/share) &&
		cap(c.text) <= maxKept && cap(c.entries) <= maxKeptEntries/share && cap(c.req.Descriptors) <= maxKeptList/share
}

// begin returns a call for the request that has turn t. Large calls are of a pool of
// their own, and are taken out of it after the wait for a turn: thousands of requests
// may wait, and none of them has that much memory.
func (s *Service) begin(t *turn) *call {
	if t.of != nil {
		return s.largePool.Get().(*call)
	}
	return s.pool.Get().(*call)
}

func (s *Service) release(c *call) {
	if c.buf != nil {
		c.buf.Free()
		c.buf = nil
	}
	if !c.fits() {
		return
	}
	clear(c.entries) // they point into what came off the wire
	clear(c.req.Descriptors)
	if c.large {
		s.largePool.Put(c)
	} else {
		s.pool.Put(c)
	}
}

// read turns msg into c.req.
func (c *call) read(msg *pb.RateLimitRequest) {
	c.text, c.entries = c.text[:0], c.entries[:0]
	c.req = limiter.Request{
		Domain:      c.bytes(msg.GetDomain()),
		Descriptors: c.req.Descriptors[:0],
		Hits:        uint64(msg.GetHitsAddend()),
	}
	for _, d := range msg.GetDescriptors() {
		c.req.Descriptors = append(c.req.Descriptors, c.descriptor(d))
	}
}

func (c *call) descriptor(d *common.RateLimitDescriptor) limiter.Descriptor {
	first := len(c.entries)
	for _, e := range d.GetEntries() {
		c.entries = append(c.entries, rules.Entry{Key: c.bytes(e.GetKey()), Value: c.bytes(e.GetValue())})
	}
	out := limiter.Descriptor{Entries: c.entries[first:len(c.entries):len(c.entries)], Refund: d.GetIsNegativeHits()}
	if hits := d.GetHitsAddend(); hits != nil {
		out.HasHits, out.Hits = true, hits.GetValue()
	}
	if limit := d.GetLimit(); limit != nil {
		out.HasLimit = true
		out.Limit = rules.Quantity{Requests: limit.GetRequestsPerUnit(), Unit: unit(int32(limit.GetUnit())), Multiplier: 1}
		if m := limit.GetUnitMultiplier(); m != nil {
			out.Limit.Multiplier = m.GetValue()
		}
	}
	return out
}

// bytes copies s behind the texts already read. Growing leaves earlier slices
// on the old memory, which stays as it is.
func (c *call) bytes(s string) []byte {
	start := len(c.text)
	c.text = append(c.text, s...)
	return c.text[start:len(c.text):len(c.text)]
}

// unit takes the enum of a request, which lacks WEEK, by its number, as the
// enum of responses has it. Unknown numbers become UnitUnknown.
func unit(n int32) rules.Unit {
	if n < 0 || n > int32(rules.Week) {
		return rules.UnitUnknown
	}
	return rules.Unit(n)
}

func response(a *limiter.Answer) *pb.RateLimitResponse {
	out := &pb.RateLimitResponse{
		OverallCode: code(a.Over),
		Statuses:    make([]*pb.RateLimitResponse_DescriptorStatus, len(a.Statuses)),
	}
	for i := range a.Statuses {
		out.Statuses[i] = descriptorStatus(&a.Statuses[i])
	}
	return out
}

func code(over bool) pb.RateLimitResponse_Code {
	if over {
		return pb.RateLimitResponse_OVER_LIMIT
	}
	return pb.RateLimitResponse_OK
}

func descriptorStatus(st *limiter.Status) *pb.RateLimitResponse_DescriptorStatus {
	out := &pb.RateLimitResponse_DescriptorStatus{Code: code(st.Over)}
	if st.Unlimited() {
		out.LimitRemaining = math.MaxUint32
	}
	c := st.Binding
	if c == nil {
		return out
	}
	out.CurrentLimit = &pb.RateLimitResponse_RateLimit{
		RequestsPerUnit: c.Limit.Requests,
		Unit:            pb.RateLimitResponse_RateLimit_Unit(c.Limit.Unit),
	}
	if c.Rule != nil {
		out.CurrentLimit.Name = c.Rule.Name
	}
	if c.Limit.Multiplier > 1 {
		out.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(c.Limit.Multiplier)
	}
	out.LimitRemaining = uint32(min(c.Verdict.Remaining, math.MaxUint32))
	out.DurationUntilReset = durationpb.New(st.ResetAfter)
	return out
}

// wholeSeconds rounds up: a caller told 1 s when 1.4 are left comes back too
// early.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
