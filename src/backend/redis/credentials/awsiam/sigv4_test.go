package awsiam

import (
	"strings"
	"testing"
	"time"
)

// The keys and the time of AWS' published vectors.
var (
	vectorKeys = keys{id: "AKIDEXAMPLE", secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
	vectorTime = time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
)

// The inputs and signatures are those of AWS' signing test suite for version 4 (presigned requests).
func TestPublishedVectors(t *testing.T) {
	t.Parallel()
	const unreserved = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	for _, tt := range []struct {
		name, session string
		query         map[string]string
		signature     string
	}{
		{
			name:      "get-vanilla-query",
			signature: "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d",
		},
		{
			name: "get-vanilla-empty-query-key", query: map[string]string{"Param1": "value1"},
			signature: "49096700cbbaa5753443850f40df10f904fc2fdb544dc9512203cc77c471a9de",
		},
		{
			name: "get-vanilla-query-order-key-case", query: map[string]string{"Param2": "value2", "Param1": "value1"},
			signature: "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5",
		},
		{
			name:      "get-vanilla-query-order-encoded",
			query:     map[string]string{"Param-3": "Value3", "Param": "Value2", "\u1234": "Value1"},
			signature: "c5f1848ceec943ac2ca68ee720460c23aaae30a2300586597ada94c4a65e4787",
		},
		{
			name: "get-vanilla-query-unreserved", query: map[string]string{unreserved: unreserved},
			signature: "8e76a88a7433637b12778d5592799b29ad21ecd6cf6325051c21d86f0acda2bf",
		},
		{
			name: "get-vanilla-utf8-query", query: map[string]string{"\u1234": "bar"},
			signature: "0bdd809b1519ac4f0c1dc3540e2cc46bd0c7f778eda408b2ebf3b913d21ff600",
		},
		{
			name:      "get-vanilla-with-session-token",
			session:   "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267",
			signature: "7ff2b50b376cb4d151970630573d6291dc128cc5c2a12ffb237f73cc53f67b6c",
		},
	} {
		r := request{host: "example.amazonaws.com", region: "us-east-1", service: "service", query: tt.query, life: time.Hour}
		k := vectorKeys
		k.session = tt.session
		got := r.presign(k, vectorTime)
		if _, signature, _ := strings.Cut(got, "&X-Amz-Signature="); signature != tt.signature {
			t.Errorf("%s: signature %s, want %s, in %s", tt.name, signature, tt.signature, got)
		}
	}
}
