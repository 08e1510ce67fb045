package rls

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// replyJSON writes the answer of c, whose headers it also adds to headers.
func (s *Service) replyJSON(c *call, headers http.Header) ([]byte, error) {
	b, err := AppendJSON(nil, &c.answer)
	if err != nil {
		return nil, err
	}
	var more pb.RateLimitResponse
	if s.cfg.Headers != nil {
		for _, h := range s.cfg.Headers.appendHeaders(nil, &c.answer) {
			value := string(h.appendValue(nil))
			headers.Set(h.name, value)
			more.ResponseHeadersToAdd = append(more.ResponseHeadersToAdd, &core.HeaderValue{Key: h.name, Value: value})
		}
	}
	if s.cfg.Metadata {
		if more.DynamicMetadata, err = c.dynamicMetadata(); err != nil {
			return nil, err
		}
	}
	if more.ResponseHeadersToAdd == nil && more.DynamicMetadata == nil {
		return b, nil
	}
	b[len(b)-1] = ',' // not '}', since more follows
	begin := len(b)
	if b, err = appendProto(b, &more); err != nil {
		return nil, err
	}
	return slices.Delete(b, begin, begin+1), nil // the '{' of more
}

// AppendJSON appends the RateLimitResponse for a as protojson writes it, without response
// headers and dynamic metadata. It fails if the name of a rule is not UTF-8.
func AppendJSON(b []byte, a *limiter.Answer) (_ []byte, err error) {
	b = append(b, `{"overallCode":"`...)
	b = append(b, codeName(a.Over)...)
	b = append(b, `","statuses":[`...)
	for i := range a.Statuses {
		if b, err = appendJSONStatus(b, &a.Statuses[i]); err != nil {
			return nil, err
		}
		b = append(b, ',')
	}
	return append(closeWith(b, ']'), '}'), nil
}

func codeName(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}

func appendJSONStatus(b []byte, st *limiter.Status) ([]byte, error) {
	b = append(b, `{"code":"`...)
	b = append(append(b, codeName(st.Over)...), `",`...)
	c := st.Binding
	if c == nil {
		if st.Unlimited() {
			b = appendJSONNumber(b, `"limitRemaining":`, math.MaxUint32)
		}
		return closeWith(b, '}'), nil
	}
	b = append(b, `"currentLimit":{`...)
	if c.Rule != nil && c.Rule.Name != "" {
		var err error
		if b, err = appendProto(append(b, `"name":`...), structpb.NewStringValue(c.Rule.Name)); err != nil {
			return nil, err
		}
		b = append(b, ',')
	}
	b = appendJSONNumber(b, `"requestsPerUnit":`, uint64(c.Limit.Requests))
	if c.Limit.Unit != rules.UnitUnknown {
		b = append(append(append(b, `"unit":"`...), c.Limit.Unit.String()...), `",`...)
	}
	if c.Limit.Multiplier > 1 {
		b = appendJSONNumber(b, `"unitMultiplier":`, uint64(c.Limit.Multiplier))
	}
	b = append(closeWith(b, '}'), ',')
	b = appendJSONNumber(b, `"limitRemaining":`, min(c.Verdict.Remaining, math.MaxUint32))
	b = append(b, `"durationUntilReset":"`...)
	b = strconv.AppendInt(b, int64(st.ResetAfter/time.Second), 10)
	if part := st.ResetAfter % time.Second; part > 0 { // as 3, 6 or 9 digits
		b = fmt.Appendf(b, ".%09d", part)
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("000")), []byte("000"))
	}
	return append(b, `s"}`...), nil
}

// appendJSONNumber appends a field and a comma, unless v is 0, which proto3 JSON leaves out.
func appendJSONNumber(b []byte, field string, v uint64) []byte {
	if v == 0 {
		return b
	}
	return append(strconv.AppendUint(append(b, field...), v, 10), ',')
}

// closeWith appends the end of a list or an object in place of a comma after its last part.
func closeWith(b []byte, end byte) []byte { return append(bytes.TrimSuffix(b, []byte{','}), end) }

// appendProto appends m in proto3 JSON, without the random blanks that protojson adds.
func appendProto(b []byte, m proto.Message) ([]byte, error) {
	loose, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	tight := bytes.NewBuffer(b)
	err = json.Compact(tight, loose)
	return tight.Bytes(), err
}
