package rls

import (
	"bytes"
	"fmt"
	"testing"

	"ratelimit/src/rules"
)

// Text is matched and counted as the bytes that were sent, whether or not they are
// UTF-8, and none of it is copied.
func TestTextsAreBytes(t *testing.T) {
	t.Parallel()
	data := wire("d\xff", []rules.Entry{{Key: []byte("i\xc0p"), Value: []byte("1\xff\xfe2")}})
	c := new(callMemory)
	if err := c.decodeRequest(data); err != nil {
		t.Fatal(err)
	}
	e := c.req.Descriptors[0].Entries[0]
	for _, text := range []struct{ got, want string }{
		{string(c.req.Domain), "d\xff"}, {string(e.Key), "i\xc0p"}, {string(e.Value), "1\xff\xfe2"},
	} {
		if text.got != text.want {
			t.Errorf("got %q, want %q", text.got, text.want)
		}
	}
	data[bytes.IndexByte(data, '2')] = '3'
	if string(e.Value) != "1\xff\xfe3" {
		t.Errorf("%q is a copy", e.Value)
	}
}

// sampleTexts are values of size bytes, from the cheapest for a reader to the dearest.
func sampleTexts(size int) map[string][]byte {
	fill := func(s string) []byte { return bytes.Repeat([]byte(s), size/len(s)) }
	return map[string][]byte{
		"ascii": fill("a"), "latin": fill("ü"), "wide": fill("€"), "emoji": fill("😀"),
		"invalid": fill("\xff"), "alternating": fill("a\xff"), "pairs": fill("aa\xff"), "rare": fill("abcdefghijklmnop\xff"),
		"cut": fill("\xe2\x82a"),
	}
}

// BenchmarkText measures a call with 1,000 values of 4 KB of different text, its
// transport left out. The worst text must cost at most twice what ASCII costs.
func BenchmarkText(b *testing.B) {
	for name, value := range sampleTexts(4 << 10) {
		b.Run(fmt.Sprintf("text=%s", name), func(b *testing.B) {
			f := wireFixture(b, noHeaders)
			descriptors := make([][]rules.Entry, 1000)
			for i := range descriptors {
				descriptors[i] = []rules.Entry{{Key: []byte("ip"), Value: value}}
			}
			data := wire("d", descriptors...)
			b.SetBytes(int64(len(data)))
			f.benchmark(b, data)
		})
	}
}

// BenchmarkDecode measures reading the same requests alone.
func BenchmarkDecode(b *testing.B) {
	for name, value := range sampleTexts(4 << 10) {
		b.Run(fmt.Sprintf("text=%s", name), func(b *testing.B) {
			descriptors := make([][]rules.Entry, 1000)
			for i := range descriptors {
				descriptors[i] = []rules.Entry{{Key: []byte("ip"), Value: value}}
			}
			data := wire("d", descriptors...)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			c := new(callMemory)
			for b.Loop() {
				if err := c.decodeRequest(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
