package rls

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"ratelimit/src/rules"
)

func FuzzRepair(f *testing.F) {
	for _, text := range []string{
		"", "plain, and more than eight bytes", "ü€😀", "\xff", "a\xffb", "\xff\xfea\x80", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80",
		"12345678\xff12345678\xff", "\xe2\x82", "€\xe2\x82€", "\uFFFD\xff\uFFFD", strings.Repeat("a\xff", 20), "abcdefg\xc3\xbc\xc3",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want := strings.ToValidUTF8(string(text), "\uFFFD")
		got := make([]byte, repairRoom(len(text)))
		if got = got[:repair(got, text)]; string(got) != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	})
}

// sampleTexts are values of size bytes, from the cheapest for a reader to the dearest.
func sampleTexts(size int) map[string][]byte {
	fill := func(s string) []byte { return bytes.Repeat([]byte(s), size/len(s)) }
	return map[string][]byte{
		"ascii": fill("a"), "latin": fill("ü"), "wide": fill("€"), "emoji": fill("😀"),
		"invalid": fill("\xff"), "alternating": fill("a\xff"), "pairs": fill("aa\xff"), "rare": fill("abcdefghijklmnop\xff"), "cut": fill("\xe2\x82a"),
	}
}

// BenchmarkText measures a call with 1,000 values of 4 KB of different text, its
// transport left out. The worst text must cost at most twice what ASCII costs.
func BenchmarkText(b *testing.B) {
	for name, value := range sampleTexts(4 << 10) {
		b.Run(fmt.Sprintf("text=%s", name), func(b *testing.B) {
			f := twin(b, false)
			descriptors := make([][]rules.Entry, 1000)
			for i := range descriptors {
				descriptors[i] = []rules.Entry{{Key: []byte("ip"), Value: value}}
			}
			var in mem.Buffer = mem.SliceBuffer(wire("d", descriptors...))
			b.SetBytes(int64(in.Len()))
			b.ReportAllocs()
			for b.Loop() {
				c := f.pool.Get().(*call)
				c.buf = in
				out, err := f.answer(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				out.(*reply).Put(nil)
				f.release(c)
			}
		})
	}
}

// BenchmarkScan measures reading the same requests alone.
func BenchmarkScan(b *testing.B) {
	for name, value := range sampleTexts(4 << 10) {
		b.Run(fmt.Sprintf("text=%s", name), func(b *testing.B) {
			descriptors := make([][]rules.Entry, 1000)
			for i := range descriptors {
				descriptors[i] = []rules.Entry{{Key: []byte("ip"), Value: value}}
			}
			data := wire("d", descriptors...)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			c := new(call)
			for b.Loop() {
				if err := c.scan(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
