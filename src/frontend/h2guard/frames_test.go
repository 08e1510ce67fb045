package h2guard

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"golang.org/x/net/http2"
)

// oracle reads the frame headers of data with x/net's framer.
func oracle(data []byte) (list []frameHeader) {
	r := bytes.NewReader(data)
	for {
		h, err := http2.ReadFrameHeader(r)
		if err != nil {
			return list
		}
		list = append(list, frameHeader{h.Length, h.Type, h.Flags, h.StreamID})
		if _, err := io.CopyN(io.Discard, r, int64(h.Length)); err != nil {
			return list
		}
	}
}

// FuzzFrames cuts bytes into pieces, in each of which the same frames must be found.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	for _, err := range []error{
		fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("abc"), EndHeaders: true}),
		fr.WriteData(1, true, bytes.Repeat([]byte{7}, 300)),
		fr.WriteRSTStream(1<<31-1, http2.ErrCodeCancel),
		fr.WriteRawFrame(0xfa, 0xff, 0, nil),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes(), []byte{1, 9, 30, 255})
	f.Add(b.Bytes(), []byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 1}, []byte{3})
	f.Fuzz(func(t *testing.T, data, cuts []byte) {
		want := oracle(data)
		var got []frameHeader
		var s frameScanner
		for i, rest := 0, data; len(rest) > 0; i++ {
			n := len(rest)
			if i < len(cuts) {
				n = min(n, int(cuts[i]))
			}
			piece := rest[:n]
			rest = rest[n:]
			for fr, after, ok := s.next(piece); ok; fr, after, ok = s.next(after) {
				got = append(got, fr)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%x cut at %v: got %v, want %v", data, cuts, got, want)
		}
	})
}
