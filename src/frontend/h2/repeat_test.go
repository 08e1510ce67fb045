package h2

import (
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// TestRepeatedBlock sends the same header block twice, with other frames between. Its literals are in the read
// buffer, which has other content when the block comes again.
func TestRepeatedBlock(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.Method + r.URL.Path + r.Header.Get("x")))
	})})
	for _, test := range []struct{ name, block, want string }{
		{"indexed fields", "\x83\x86\x84", "POST/"},
		{"literal path", "\x83\x86\x04\x05/path", "POST/path"},
		{"literal verb", "\x02\x03PUT\x86\x84", "PUT/"},
		{"literal name", "\x83\x86\x84\x00\x01x\x01y", "POST/y"},
		{"Huffman path", "\x83\x86\x04\x88\x60\xd5\x48\x5f\x2b\xce\x9a\x68", "POST/index.html"},
	} {
		c := s.connect()
		for i := range 5 {
			id := c.newID()
			c.frame(http2.FrameHeaders, flagEndHeaders|flagEndStream, id, test.block)
			if a := c.ended(id); string(a.data) != test.want {
				t.Errorf("%s: answer %d is %q, not %q", test.name, i, a.data, test.want)
			}
			for range i + 3 {
				c.frame(http2.FramePing, 0, 0, "moves it")
			}
		}
		c.expectAlive()
	}
}
