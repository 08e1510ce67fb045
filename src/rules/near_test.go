package rules

import (
	"testing"
)

func TestOneEdit(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{"key", "key", true},
		{"ke", "key", true},
		{"keys", "key", true},
		{"kee", "key", true},
		{"kye", "key", true},
		{"yek", "key", false},
		{"k", "key", false},
		{"keysy", "key", false},
		{"", "k", true},
		{"", "", true},
		{"aab", "ab", true},
		{"abab", "baba", false},
	}
	for _, test := range tests {
		if isOneEdit(test.a, test.b) != test.want || isOneEdit(test.b, test.a) != test.want {
			t.Errorf("one edit between %q and %q: want %t", test.a, test.b, test.want)
		}
	}
}
