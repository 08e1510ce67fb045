package xdsrules

import (
	"testing"
	"unicode/utf8"

	"ratelimit/src/rules/reload"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Each response is accepted with a set, or refused with a reason that can be sent. A repetition
// has the same result.
func FuzzResponse(f *testing.F) {
	envelope := anyOf(f, &discovery.Resource{Name: "a", Resource: anyOf(f, limit("a", 1))})
	heartbeat := anyOf(f, &discovery.Resource{Name: "a"})
	for _, r := range []*discovery.DiscoveryResponse{
		response(f, "1", "1", limit("a", 1), limit("a", 2)),
		response(f, "", ""),
		{TypeUrl: "x"},
		{TypeUrl: TypeURL, Resources: []*anypb.Any{envelope}},
		{TypeUrl: TypeURL, Resources: []*anypb.Any{heartbeat, envelope}},
		{TypeUrl: TypeURL, Resources: []*anypb.Any{{TypeUrl: TypeURL, Value: []byte{0xff}}}},
	} {
		data, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r discovery.DiscoveryResponse
		if proto.Unmarshal(data, &r) != nil {
			return // gRPC ends the stream
		}
		whole := len(data)%2 == 0
		var updates []reload.Result
		w, err := New(Config{
			Server: "x",
			Config: reload.Config{AllOrNothing: whole, OnLoad: func(u reload.Result) { updates = append(updates, u) }},
		})
		if err != nil {
			t.Fatal(err)
		}
		reason, repeats := w.loadResponse(&r)
		if !utf8.ValidString(reason) || len(reason) > 4<<10 || repeats != 0 {
			t.Fatalf("repeats %d, reason %q", repeats, reason)
		}
		again, repeats := w.loadResponse(&r)
		if again != reason {
			t.Fatalf("%q, and again %q", reason, again)
		}
		switch {
		case len(updates) > 1:
			t.Fatal("the same is told twice")
		case len(updates) == 0: // a heartbeat of nothing
			if reason == "" {
				t.Fatal("accepted, and nobody knows what")
			}
		case (updates[0].Set == nil) != (updates[0].Err != nil) && (whole || updates[0].Set == nil) ||
			(updates[0].Err != nil) != (reason != "") || (repeats > 0) != (reason != ""):
			t.Fatalf("reason %q, %d repeats, of %+v", reason, repeats, updates[0])
		}
	})
}
