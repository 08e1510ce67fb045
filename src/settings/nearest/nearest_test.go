package nearest

import "testing"

func TestWord(t *testing.T) {
	t.Parallel()
	known := []string{"serve", "check", "client", "test", "bench", "REDIS_URL", "REDIS_TLS", "PORT", "HOST", "go"}
	for _, tt := range []struct{ word, want string }{
		{"chekc", "check"},  // a swap
		{"sevre", "serve"},  // a swap
		{"cheeck", "check"}, // an insertion
		{"clint", "client"}, // a deletion
		{"serv", "serve"},   //
		{"tset", "test"},    // four letters: one edit
		{"tse", ""},         // three letters: one edit, this takes two
		{"REDIS_URLL", "REDIS_URL"},
		{"RDIS_ULR", "REDIS_URL"}, // two edits
		{"REDIS_TRL", "REDIS_URL"},
		{"POTR", "PORT"},
		{"PO", ""}, // too short
		{"go", ""},
		{"", ""},
		{"deploy", ""},
		{"serve", "serve"}, // no edits
	} {
		if got := Word(tt.word, known); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.word, got, tt.want)
		}
	}
}

func TestIsWithin(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "ab", 2},
		{"abc", "abc", 0},
		{"abc", "acb", 1},
		{"abcd", "badc", 2},
		{"abc", "xyz", 3},
		{"abc", "abcdefgh", 5},
		{"aab", "aba", 1},
		{"kitten", "sitting", 3},
		{"key", "key", 0},
		{"ke", "key", 1},
		{"keys", "key", 1},
		{"kee", "key", 1},
		{"kye", "key", 1},
		{"yek", "key", 2},
		{"k", "key", 2},
		{"keysy", "key", 2},
		{"", "k", 1},
		{"aab", "ab", 1},
		{"abab", "baba", 2},
	} {
		for edits := range tt.want + 2 {
			if got := IsWithin(edits, tt.a, tt.b) && IsWithin(edits, tt.b, tt.a); got != (edits >= tt.want) {
				t.Errorf("%q %q: within %d edits is %t, want %d", tt.a, tt.b, edits, got, tt.want)
			}
		}
	}
}
