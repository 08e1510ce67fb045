package wildcard

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// latin1 makes one rune of each byte, so that regexp works on bytes.
func latin1(b string) string {
	runes := make([]rune, len(b))
	for i := range len(b) {
		runes[i] = rune(b[i])
	}
	return string(runes)
}

// FuzzWildcard holds patterns to the same patterns written as a regexp, and
// "covers" to its promise.
func FuzzWildcard(f *testing.F) {
	f.Add("a*b", "ab", "a*xb")
	f.Add("*", "", "**")
	f.Add("ab*ba", "aba", "ab*ba")
	f.Add("*aab*", "aaab", "*aaab*")
	f.Add("1*2*3", "1223", "1*23")
	f.Add("k_*.png", "k_\xff.png", "k_\n*.png")
	f.Add("a**.b", "a*xb", "a*.b")
	f.Fuzz(func(t *testing.T, p, text, q string) {
		if !strings.Contains(p, "*") || len(p) > 100 || len(text) > 1000 || len(q) > 100 {
			return
		}
		parts := strings.Split(latin1(p), "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		oracle := regexp.MustCompile(`\A` + strings.Join(parts, `(?s:.*)`) + `\z`)
		pattern := Compile(p)
		for _, s := range []string{text, q, strings.ReplaceAll(p, "*", text), strings.ReplaceAll(q, "*", text)} {
			if got, want := pattern.Matches([]byte(s)), oracle.MatchString(latin1(s)); got != want {
				t.Fatalf("%q matches %q: %t, want %t", p, s, got, want)
			}
		}
		if !strings.Contains(q, "*") || !pattern.Covers(q) {
			return
		}
		narrow := Compile(q)
		for _, s := range []string{
			text, strings.ReplaceAll(q, "*", text), strings.ReplaceAll(q, "*", ""),
			strings.ReplaceAll(q, "*", p),
		} {
			if narrow.Matches([]byte(s)) && !pattern.Matches([]byte(s)) {
				t.Fatalf("%q covers %q, but only the latter matches %q", p, q, s)
			}
		}
	})
}

// BenchmarkHostileText is a megabyte that nearly matches at each byte. The time for a byte must not grow with the
// literal.
func BenchmarkHostileText(b *testing.B) {
	text := bytes.Repeat([]byte("a"), 1<<20)
	for _, n := range []int{8, 40, 63, 64, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := Compile("*" + strings.Repeat("a", n/2) + "b" + strings.Repeat("a", n/2) + "*")
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if p.Matches(text) {
					b.Fatal("it matches")
				}
			}
		})
	}
}
