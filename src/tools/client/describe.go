package client

import (
	"encoding/json"
	"fmt"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Describe returns an answer as text for people: the overall code, then a line for each
// descriptor.
func Describe(msg *pb.RateLimitRequest, resp *pb.RateLimitResponse) string {
	var b strings.Builder
	fmt.Fprintln(&b, resp.GetOverallCode())
	for i, st := range resp.GetStatuses() {
		var pairs []string
		if i < len(msg.GetDescriptors()) {
			for _, e := range msg.GetDescriptors()[i].GetEntries() {
				pairs = append(pairs, e.GetKey()+"="+e.GetValue())
			}
		}
		fmt.Fprintf(&b, "  %s: %v, %s\n", strings.Join(pairs, ","), st.GetCode(), describeLimit(st))
		if short := summary(resp, i); short != "" {
			fmt.Fprintf(&b, "    all levels in one [limited, limit, remaining, retry after, reset after]: %s\n", short)
		}
	}
	return b.String()
}

// summary is what the metadata says of the levels of descriptor i in a tree of
// limits; empty if it says nothing.
func summary(resp *pb.RateLimitResponse, i int) string {
	all := resp.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
	if i >= len(all) {
		return ""
	}
	list := all[i].GetStructValue().GetFields()["summary"].GetListValue()
	if list == nil {
		return ""
	}
	text, err := json.Marshal(list.AsSlice())
	if err != nil { // there are numbers that JSON has not
		return ""
	}
	return string(text)
}

func describeLimit(st *pb.RateLimitResponse_DescriptorStatus) string {
	limit := st.GetCurrentLimit()
	if limit == nil {
		if st.GetLimitRemaining() > 0 {
			return "unlimited"
		}
		return "no limit applies"
	}
	unit := strings.ToLower(limit.GetUnit().String())
	if m := limit.GetUnitMultiplier().GetValue(); m > 1 {
		unit = fmt.Sprintf("%d %ss", m, unit)
	}
	s := fmt.Sprintf("%d per %s, %d remaining, resets in %v",
		limit.GetRequestsPerUnit(), unit, st.GetLimitRemaining(), st.GetDurationUntilReset().AsDuration())
	if limit.GetName() != "" {
		s = limit.GetName() + ": " + s
	}
	return s
}
