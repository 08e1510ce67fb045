package h2

import (
	"bytes"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzParseTimeout compares with the rule of "gRPC over HTTP2": at most eight digits and a unit. We bound a timeout to
// a day.
func FuzzParseTimeout(f *testing.F) {
	for _, text := range []string{
		"1n", "20u", "20m", "7S", "2M", "3H", "00000001S", "99999999n", "0n", "0S", "25H", "99999999H", "99999999M", "99999S",
		"", "1", "S", "12", "x", "100000000n", "-1S", "+1S", "1.5S", "1s", "1h", " 1S", "1S ", "1_0S", "0x1S", "１S",
	} {
		f.Add(text)
	}
	units := map[byte]time.Duration{
		'n': 1, 'u': time.Microsecond, 'm': time.Millisecond, 'S': time.Second,
		'M': time.Minute, 'H': time.Hour,
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, isValid := time.Duration(0), false
		if n := len(text); n >= 2 && n <= 9 && text[0] != '+' {
			count, err := strconv.ParseUint(text[:n-1], 10, 64)
			unit := units[text[n-1]]
			isValid = err == nil && unit != 0
			if isValid {
				want = time.Duration(min(float64(count)*float64(unit), float64(24*time.Hour)))
			}
		}
		if got, ok := parseTimeout([]byte(text)); ok != isValid || got != want {
			t.Errorf("%q is %v, %t, not %v, %t", text, got, ok, want, isValid)
		}
	})
}

// TestTimeoutClass checks that calls of one class may share a deadline.
func TestTimeoutClass(t *testing.T) {
	t.Parallel()
	last := 0
	for first, d := time.Duration(1), time.Duration(1); d < 25*time.Hour; d += d/1000 + 1 {
		class := timeoutClass(d)
		if class < last {
			t.Fatalf("the class of %v is %d, less than that of less time", d, class)
		}
		if class > last {
			first, last = d, class
		}
		if d-first > first/8 {
			t.Fatalf("%v and %v are in class %d, although they differ by more than an eighth", first, d, class)
		}
	}
	if timeoutClass(0) <= last {
		t.Error("no timeout is not the longest")
	}
}

// FuzzClassify compares the classification of fields with the rules of x/net for names and values.
func FuzzClassify(f *testing.F) {
	for _, seed := range []string{
		":path|" + methodPath, ":path|", ":path|/", ":method|POST", ":method|CONNECT", ":status|200", ":|x", "X|y",
		"te|trailers", "te|gzip", "connection|close",
		"x| y", "x|y\t", "x|\x00", "x|\xff", "x y|z", "grpc-encoding|identity", "grpc-encoding|gzip", "|",
		"content-type|application/grpc+json", "content-length|3",
	} {
		name, value, _ := strings.Cut(seed, "|")
		f.Add(name, value)
	}
	special := map[string]string{
		":status": "", "connection": "", "proxy-connection": "", "keep-alive": "",
		"transfer-encoding": "", "upgrade": "", "te": "trailers",
	}
	pseudo := map[string]bool{":path": true, ":method": true, ":scheme": true, ":authority": true}
	f.Fuzz(func(t *testing.T, name, value string) {
		got := classify([]byte(name), []byte(value), methodPath)
		only, isSpecial := special[name]
		isValid := httpguts.ValidHeaderFieldName(name) && strings.ToLower(name) == name || pseudo[name]
		isValid = isValid && !strings.ContainsAny(value, "\x00\r\n") && strings.Trim(value, " \t") == value
		isValid = isValid && (!isSpecial || only != "" && only == value) && (name != ":path" || value != "") &&
			(name != ":method" || value != "CONNECT")
		if (got == meansMalformed) == isValid {
			t.Errorf("%q: %q has the meaning %d, valid: %t", name, value, got, isValid)
		}
		if isPseudo := pseudoMeanings>>got&1 != 0; got != meansMalformed && isPseudo != pseudo[name] {
			t.Errorf("%q: %q is a pseudo-header field: %t", name, value, isPseudo)
		}
		if (got == meansMethod) != (name == ":path" && value == methodPath) {
			t.Errorf("%q: %q is the path of the method: %t", name, value, got == meansMethod)
		}
	})
}

func TestContentLength(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "007": 7, "9223372036854775807": 1<<63 - 1,
		"": -1, "-1": -1, "+1": -1, "1 ": -1, "1,1": -1, "9223372036854775808": -1, "0x1": -1, "1_0": -1,
	} {
		h := head{length: -1}
		h.add(&field{name: []byte("content-length"), value: []byte(text), meaning: meansLength})
		if h.has(meansMalformed) != (want < 0) || want >= 0 && h.length != want {
			t.Errorf("%q is %d, malformed: %t", text, h.length, h.has(meansMalformed))
		}
	}
}

// FuzzPercentEncode decodes what percentEncode returns.
func FuzzPercentEncode(f *testing.F) {
	for _, text := range []string{"", "plain text", "100 %", "%41", "line\nend", "grüße", "\xff\x00\x7f~ "} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		encoded := percentEncode(text)
		if got, err := url.PathUnescape(encoded); err != nil || got != text[:min(len(text), maxErrorText)] {
			t.Errorf("%q became %q, which is %q, %v", text, encoded, got, err)
		}
		if strings.ContainsFunc(encoded, func(r rune) bool { return r < ' ' || r > '~' }) ||
			!isValidValue([]byte("x"+encoded+"x")) {
			t.Errorf("%q became %q, which no field may have", text, encoded)
		}
	})
}

// FuzzEncode reads header frames with x/net, of one field and a status.
func FuzzEncode(f *testing.F) {
	f.Add("name", "value", uint8(0))
	f.Add("name", strings.Repeat("v", 126), uint8(flagEndStream))
	f.Add("name", strings.Repeat("v", 127), uint8(0))
	f.Add("name", strings.Repeat("v", 3*maxFrameBytes), uint8(flagEndStream))
	f.Fuzz(func(t *testing.T, name, value string, flags uint8) {
		flags = flagEndHeaders | flags&flagEndStream
		b := appendHeaderFrame(nil, flags, 7, appendField([]byte{0x88}, name, value))
		framer := http2.NewFramer(nil, bytes.NewReader(b))
		var block []byte
		for isLast := false; !isLast; {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			h := frame.Header()
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				block, isLast = append(block, frame.HeaderBlockFragment()...), frame.HeadersEnded()
				if frame.StreamEnded() != (flags&flagEndStream != 0) || len(block) > 0 && h.StreamID != 7 {
					t.Fatalf("wrong frame %v", h)
				}
			case *http2.ContinuationFrame:
				block, isLast = append(block, frame.HeaderBlockFragment()...), frame.HeadersEnded()
			}
			if h.Length > maxFrameBytes {
				t.Fatalf("the frame %v is too long", h)
			}
		}
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
		if err != nil || len(fields) != 2 || fields[0].Value != "200" || fields[1].Name != name || fields[1].Value != value {
			t.Fatalf("the fields are %v, %v", fields, err)
		}
	})
}

// FuzzReadFrame compares readFrame with the frames that x/net reads from the same bytes.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte(http2.ClientPreface))
	f.Add(appendFrameHeader(nil, 0, http2.FrameSettings, flagAck, 0))
	f.Add(append(appendFrameHeader(nil, 3, http2.FrameData, flagPadded|flagEndStream, 1), "\x02xy"...))
	f.Add(append(appendFrameHeader(nil, 3, http2.FrameHeaders, flagPadded, 1), "\x03xy"...))
	f.Add(appendNumberFrame(appendNumberFrame(nil, http2.FrameWindowUpdate, 1<<31|5, 9), http2.FrameRSTStream, 3, 8))
	f.Add(appendFrameHeader(nil, maxFrameBytes+1, http2.FrameData, 0, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		framer := http2.NewFramer(nil, bytes.NewReader(data))
		framer.SetMaxReadFrameSize(maxFrameBytes)
		framer.AllowIllegalReads = true
		for {
			var got frame
			n, err := readFrame(data, &got)
			header, oracleErr := framer.ReadFrameHeader()
			if oracleErr != nil || err != nil {
				if errors.Is(oracleErr, http2.ErrFrameTooLarge) != (err != nil) || n != 0 {
					t.Fatalf("our frame has %d bytes, %v; x/net: %v", n, err, oracleErr)
				}
				return
			}
			if n == 0 { // The frame is incomplete.
				if int(header.Length)+frameHeaderBytes <= len(data) {
					t.Fatalf("no frame, but x/net has %v", header)
				}
				return
			}
			if header.Type != http2.FrameType(got.kind) || header.Flags != http2.Flags(got.flags) ||
				header.StreamID != got.streamID || int(header.Length) != len(got.payload) {
				t.Fatalf("our frame is %v, that of x/net %v", got, header)
			}
			payload := bytes.Clone(got.payload)
			parsed, oracleErr := framer.ReadFrameForHeader(header)
			checkPadding(t, &got, payload, parsed, oracleErr)
			data = data[n:]
		}
	})
}

// checkPadding compares removePadding for DATA with x/net, of which parsed and err are the results.
func checkPadding(t *testing.T, got *frame, payload []byte, parsed http2.Frame, oracleErr error) {
	t.Helper()
	if got.kind != http2.FrameData || got.streamID == 0 {
		return
	}
	err := got.removePadding()
	if (err == nil) != (oracleErr == nil) {
		t.Fatalf("padding of %x: our error is %v, that of x/net %v", payload, err, oracleErr)
	}
	if err == nil && !bytes.Equal(got.payload, parsed.(*http2.DataFrame).Data()) {
		t.Fatalf("padding of %x: our data is %x, that of x/net %x", payload, got.payload, parsed.(*http2.DataFrame).Data())
	}
}
