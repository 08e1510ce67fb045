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

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// jsonReply returns the reply for the answer of c in JSON. It sets the response headers in headers.
func (s *Service) jsonReply(c *callMemory, headers http.Header) ([]byte, error) {
	b, err := AppendJSONResponse(nil, &c.answer)
	if err != nil {
		return nil, err
	}
	var more pb.RateLimitResponse
	if s.cfg.HeaderNames != nil {
		if err := proto.Unmarshal(s.cfg.HeaderNames.appendHeaders(nil, &c.answer), &more); err != nil {
			return nil, err
		}
		for _, h := range more.ResponseHeadersToAdd {
			headers.Set(h.Key, h.Value)
		}
	}
	if s.cfg.MetadataEnabled {
		if more.DynamicMetadata, err = dynamicMetadata(&c.req, &c.answer); err != nil {
			return nil, err
		}
	}
	if more.ResponseHeadersToAdd == nil && more.DynamicMetadata == nil {
		return b, nil
	}
	b[len(b)-1] = ',' // The comma replaces the closing brace, because more fields follow.
	begin := len(b)
	if b, err = appendProtoJSON(b, &more); err != nil {
		return nil, err
	}
	return slices.Delete(b, begin, begin+1), nil // Delete removes the opening brace of more.
}

// AppendJSONResponse appends the RateLimitResponse for a as protojson would encode it, without response
// headers and dynamic metadata, but with whole numbers where the message has 32 bits. It fails if the name of a rule is
// not UTF-8.
func AppendJSONResponse(b []byte, a *limiter.Answer) (_ []byte, err error) {
	b = append(b, `{"overallCode":"`...)
	b = append(b, limiter.CodeName(a.Over)...)
	b = append(b, `","statuses":[`...)
	for i := range a.Statuses {
		if b, err = appendJSONStatus(b, &a.Statuses[i]); err != nil {
			return nil, err
		}
		b = append(b, ',')
	}
	return append(closeJSONBracket(b, ']'), '}'), nil
}

func appendJSONStatus(b []byte, st *limiter.Status) ([]byte, error) {
	b = append(b, `{"code":"`...)
	b = append(append(b, limiter.CodeName(st.Over)...), `",`...)
	c := st.BindingCharge
	if c == nil {
		if st.IsUnlimited() {
			b = appendJSONNumberField(b, `"limitRemaining":`, math.MaxUint32)
		}
		return closeJSONBracket(b, '}'), nil
	}
	b = append(b, `"currentLimit":{`...)
	if c.Rule != nil && c.Rule.Name != "" {
		var err error
		if b, err = appendProtoJSON(append(b, `"name":`...), structpb.NewStringValue(c.Rule.Name)); err != nil {
			return nil, err
		}
		b = append(b, ',')
	}
	b = appendJSONNumberField(b, `"requestsPerUnit":`, c.Limit.Requests)
	if c.Limit.Unit != rules.UnitUnknown {
		b = append(append(append(b, `"unit":"`...), c.Limit.Unit.String()...), `",`...)
	}
	if c.Limit.UnitMultiplier > 1 {
		b = appendJSONNumberField(b, `"unitMultiplier":`, uint64(c.Limit.UnitMultiplier))
	}
	b = append(closeJSONBracket(b, '}'), ',')
	b = appendJSONNumberField(b, `"limitRemaining":`, c.Verdict.Remaining)
	b = append(b, `"durationUntilReset":"`...)
	b = strconv.AppendInt(b, int64(st.ResetAfter/time.Second), 10)
	if part := st.ResetAfter % time.Second; part > 0 { // protojson writes 3, 6 or 9 digits.
		b = fmt.Appendf(b, ".%09d", part)
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("000")), []byte("000"))
	}
	return append(b, `s"}`...), nil
}

// appendJSONNumberField appends a field and a comma, unless v is 0, which proto3 JSON leaves out.
func appendJSONNumberField(b []byte, field string, v uint64) []byte {
	if v == 0 {
		return b
	}
	return append(strconv.AppendUint(append(b, field...), v, 10), ',')
}

// closeJSONBracket removes a comma after the last part of a list or an object, and appends its end.
func closeJSONBracket(b []byte, end byte) []byte {
	return append(bytes.TrimSuffix(b, []byte{','}), end)
}

// appendProtoJSON appends m in proto3 JSON, without the random spaces that protojson inserts.
func appendProtoJSON(b []byte, m proto.Message) ([]byte, error) {
	loose, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	tight := bytes.NewBuffer(b)
	err = json.Compact(tight, loose)
	return tight.Bytes(), err
}
