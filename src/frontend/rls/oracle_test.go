package rls

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// onBytes answers as the server does.
func (f *fixture) onBytes(t testing.TB, data []byte) (*pb.RateLimitResponse, error) {
	t.Helper()
	return f.send(t.Context(), data)
}

// ShouldRateLimit answers msg as the server does.
func (f *fixture) ShouldRateLimit(ctx context.Context, msg *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	data, err := proto.Marshal(msg)
	if err != nil {
		return nil, err
	}
	return f.send(ctx, data)
}

func (f *fixture) send(ctx context.Context, data []byte) (*pb.RateLimitResponse, error) {
	c := f.smallCallPool.Get().(*callMemory)
	defer f.releaseCall(c)
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, c); err != nil {
		return nil, err
	}
	out, err := f.answerGRPC(ctx, c)
	if err != nil {
		return nil, err
	}
	wire, err := newCodec().Marshal(out)
	if err != nil {
		return nil, err
	}
	defer wire.Free()
	resp := new(pb.RateLimitResponse)
	return resp, proto.Unmarshal(wire.Materialize(), resp)
}

// onMessages answers by protobuf's own reader and writer: the oracle for the ones of this
// package.
func (f *fixture) onMessages(t testing.TB, data []byte) (*pb.RateLimitResponse, error) {
	t.Helper()
	msg, err := unmarshal(data)
	if err != nil {
		f.cfg.OnError(err)
		return nil, grpcError(err)
	}
	c := new(callMemory)
	c.read(msg)
	if err := f.checkRequest(t.Context(), c, new(memoryReservation)); err != nil {
		f.cfg.OnError(err)
		return nil, grpcError(err)
	}
	resp := response(&c.answer)
	if f.cfg.HeaderNames != nil {
		resp.ResponseHeadersToAdd = f.cfg.HeaderNames.headers(&c.answer)
	}
	return resp, nil
}

// unmarshal reads a request as a message, with U+FFFD for each run of bytes that is
// not UTF-8: messages cannot hold others.
func unmarshal(data []byte) (*pb.RateLimitRequest, error) {
	msg := new(pb.RateLimitRequest)
	err := proto.Unmarshal(data, msg)
	if err != nil {
		if valid, ok := repairFields(nil, data, requestTexts); ok {
			msg = new(pb.RateLimitRequest)
			err = proto.Unmarshal(valid, msg)
		}
	}
	if err != nil {
		return nil, errMalformedProtobuf
	}
	return msg, nil
}

// texts says which fields of a message are text (nil) or messages with text.
type texts map[protowire.Number]texts

// requestTexts are domain, and of each descriptor the entries' key and value.
var requestTexts = texts{1: nil, 2: {1: {1: nil, 2: nil}}}

// repairFields appends src to dst with U+FFFD for what is not UTF-8 in its texts.
func repairFields(dst, src []byte, fields texts) ([]byte, bool) {
	for len(src) > 0 {
		num, typ, tag := protowire.ConsumeTag(src)
		if tag < 0 {
			return nil, false
		}
		size := protowire.ConsumeFieldValue(num, typ, src[tag:])
		if size < 0 {
			return nil, false
		}
		inner, known := fields[num]
		if known && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(src[tag:])
			if inner == nil {
				value = bytes.ToValidUTF8(value, []byte("\uFFFD"))
			} else {
				var ok bool
				if value, ok = repairFields(nil, value, inner); !ok {
					return nil, false
				}
			}
			dst = protowire.AppendBytes(protowire.AppendTag(dst, num, typ), value)
		} else {
			dst = append(dst, src[:tag+size]...)
		}
		src = src[tag+size:]
	}
	return dst, true
}

// read turns msg into c.req.
func (c *callMemory) read(msg *pb.RateLimitRequest) {
	c.entries = c.entries[:0]
	c.req = limiter.Request{
		Domain:        []byte(msg.GetDomain()),
		Descriptors:   c.req.Descriptors[:0],
		DefaultAmount: uint64(msg.GetHitsAddend()),
	}
	for _, d := range msg.GetDescriptors() {
		c.req.Descriptors = append(c.req.Descriptors, c.descriptor(d))
	}
}

func (c *callMemory) descriptor(d *common.RateLimitDescriptor) limiter.Descriptor {
	first := len(c.entries)
	for _, e := range d.GetEntries() {
		c.entries = append(c.entries, rules.Entry{Key: []byte(e.GetKey()), Value: []byte(e.GetValue())})
	}
	out := limiter.Descriptor{Entries: c.entries[first:len(c.entries):len(c.entries)], IsRefund: d.GetIsNegativeHits()}
	if hits := d.GetHitsAddend(); hits != nil {
		out.HasAmount, out.Amount = true, hits.GetValue()
	}
	if limit := d.GetLimit(); limit != nil {
		out.HasLimit = true
		out.Limit = rules.Rate{
			Requests: uint64(limit.GetRequestsPerUnit()), Unit: unitFromNumber(int32(limit.GetUnit())),
			UnitMultiplier: 1,
		}
		if m := limit.GetUnitMultiplier(); m != nil {
			out.Limit.UnitMultiplier = m.GetValue()
		}
	}
	return out
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
	if st.IsUnlimited() {
		out.LimitRemaining = math.MaxUint32
	}
	c := st.BindingCharge
	if c == nil {
		return out
	}
	out.CurrentLimit = &pb.RateLimitResponse_RateLimit{
		RequestsPerUnit: uint32(min(c.Limit.Requests, math.MaxUint32)),
		Unit:            pb.RateLimitResponse_RateLimit_Unit(c.Limit.Unit),
	}
	if c.Rule != nil {
		out.CurrentLimit.Name = c.Rule.Name
	}
	if c.Limit.UnitMultiplier > 1 {
		out.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(c.Limit.UnitMultiplier)
	}
	out.LimitRemaining = uint32(min(c.Verdict.Remaining, math.MaxUint32))
	out.DurationUntilReset = durationpb.New(st.ResetAfter)
	return out
}

// headers returns the response headers of an answer, in order; none if no limit applies.
func (n *HeaderNames) headers(a *limiter.Answer) (list []*core.HeaderValue) {
	st := statusForHeaders(a)
	if st == nil {
		return nil
	}
	if n.Degraded != "" && a.Fallback != backend.FallbackError {
		list = append(list, &core.HeaderValue{Key: n.Degraded, Value: a.Fallback.String()})
	}
	if n.Limit == "" && !n.Policies {
		return list
	}
	c := st.BindingCharge
	if n.Policies {
		list = append(list, policyHeaders(a, st)...)
	} else {
		list = append(
			list,
			&core.HeaderValue{Key: n.Limit, Value: strconv.FormatUint(uint64(c.Limit.Requests), 10)},
			&core.HeaderValue{Key: n.Remaining, Value: strconv.FormatUint(c.Verdict.Remaining, 10)},
			&core.HeaderValue{Key: n.Reset, Value: strconv.FormatInt(limiter.SecondsRoundedUp(st.ResetAfter), 10)},
		)
	}
	if wait := a.RetryAfter; a.Over && wait != algorithm.Never {
		list = append(list, &core.HeaderValue{
			Key:   retryAfterHeader,
			Value: strconv.FormatInt(limiter.SecondsRoundedUp(wait), 10),
		})
	}
	return list
}

// policyHeaders writes RateLimit-Policy and RateLimit with a library for structured fields.
func policyHeaders(a *limiter.Answer, shown *limiter.Status) (list []*core.HeaderValue) {
	var policyList, limits httpsfv.List
	for _, p := range policies(nil, a, shown) {
		c := p.charge
		name := fmt.Sprintf("request.%d", p.descriptor+1)
		if c.Rule != nil {
			name = cmp.Or(c.Rule.Name, c.RuleName())
		}
		name = fieldName(name)
		item := httpsfv.NewItem(name)
		item.Params.Add("q", int64(c.Algorithm.Max))
		item.Params.Add("w", int64(math.Ceil(c.Algorithm.Period.Seconds())))
		if c.Algorithm.Kind == algorithm.GCRA && c.Algorithm.Max > 0 && c.Algorithm.Burst+1 != c.Algorithm.Max {
			item.Params.Add("ratelimit-at-once", int64(c.Algorithm.Burst+1))
		}
		policyList = append(policyList, item)
		if c.Verdict.Fallback == backend.FallbackAllow && !c.Verdict.Over {
			continue
		}
		item = httpsfv.NewItem(name)
		item.Params.Add("r", int64(c.Verdict.Remaining))
		end := c.Verdict.ResetAfter
		if c.Over {
			end = c.Verdict.RetryAfter
		}
		t, retry := limiter.SecondsRoundedUp(end), limiter.SecondsRoundedUp(min(a.RetryAfter, 1<<62))
		if end != algorithm.Never && (!a.Over || a.RetryAfter == algorithm.Never || t <= retry) {
			item.Params.Add("t", t)
		}
		limits = append(limits, item)
	}
	for _, h := range []struct {
		name string
		list httpsfv.List
	}{{"RateLimit-Policy", policyList}, {"RateLimit", limits}} {
		if len(h.list) == 0 {
			continue
		}
		value, err := httpsfv.Marshal(h.list)
		if err != nil {
			panic(err) // a name that is no String of structured fields: a bug of fieldName
		}
		list = append(list, &core.HeaderValue{Key: h.name, Value: value})
	}
	return list
}

// fieldName returns what is left of a rule's name in a structured field.
func fieldName(name string) string {
	var b strings.Builder
	for _, c := range []byte(name[max(0, len(name)-96):]) {
		if c < 0x20 || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// oracleJSON writes the messages of response with protojson.
func oracleJSON(a *limiter.Answer) ([]byte, error) { return compactJSON(response(a)) }

func compactJSON(resp *pb.RateLimitResponse) ([]byte, error) {
	loose, err := protojson.Marshal(resp)
	if err != nil {
		return nil, err
	}
	var tight bytes.Buffer
	err = json.Compact(&tight, loose)
	return tight.Bytes(), err
}
