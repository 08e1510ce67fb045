//go:build linux

package siege

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is a field of bytes in a message; what proto.Marshal would refuse, too.
func field(number protowire.Number, content string) string {
	b := protowire.AppendTag(nil, number, protowire.BytesType)
	return string(protowire.AppendString(b, content))
}

// descriptor has one entry.
func descriptor(key, value string) string {
	return field(1, field(1, key)+field(2, value))
}

// question is a RateLimitRequest.
func question(domain string, descriptors ...string) []byte {
	var b strings.Builder
	b.WriteString(field(1, domain))
	for _, d := range descriptors {
		b.WriteString(field(2, d))
	}
	return []byte(b.String())
}

// same asks n times for one key and value.
func same(n int, key, value string) []byte {
	list := make([]string, n)
	for i := range list {
		list[i] = descriptor(key, value)
	}
	return question("siege", list...)
}

// fresh is a request of n descriptors whose values change with each use, so that
// no counter is asked for twice.
type fresh struct {
	content []byte
	at      []int // where values begin
	next    uint64
}

const (
	freshDigits = 16
	placeholder = "0000000000000000" // freshDigits of them
)

func newFresh(n int, key string, first uint64) *fresh {
	f := &fresh{content: same(n, key, placeholder), next: first}
	for from := 0; ; {
		i := bytes.Index(f.content[from:], []byte(placeholder))
		if i < 0 {
			return f
		}
		f.at = append(f.at, from+i)
		from += i + freshDigits
	}
}

// fill returns the request with its next values. It is valid until the next call.
func (f *fresh) fill() []byte {
	for _, at := range f.at {
		f.next++
		n := f.next
		var digits [freshDigits / 2]byte
		for i := range digits {
			digits[i] = byte(n >> (56 - 8*i))
		}
		hex.Encode(f.content[at:at+freshDigits], digits[:])
	}
	return f.content
}

func gzipped(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(content)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // a buffer takes all
	}
	return b.Bytes()
}
