package redis

import (
	"bufio"
	"bytes"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// appendReply writes what readReply reads.
func appendReply(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "*-1\r\n"...)
	case int64:
		return append(strconv.AppendInt(append(b, ':'), v, 10), "\r\n"...)
	case Error:
		return append(append(append(b, '-'), v...), "\r\n"...)
	case string:
		return appendBulk(b, v)
	case []any:
		b = append(strconv.AppendInt(append(b, '*'), int64(len(v)), 10), "\r\n"...)
		for _, item := range v {
			b = appendReply(b, item)
		}
	}
	return b
}

// FuzzReply has a server answer anything to what is asked of layouts: it is
// refused, or it is understood and means the same once it is written again. What
// is made of it names servers that can be dialled, and slots that there are.
func FuzzReply(f *testing.F) {
	for _, reply := range []string{
		"*0\r\n", "*-1\r\n", "-ERR no\r\n", ":1\r\n", "$3\r\nabc\r\n", "\r\n", "*1000000000\r\n", "*1\r\n$-1\r\n",
		"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk\r\n",
		"$99999999999\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", ":abc\r\n", "*1\r\n+OK\r\n",
		"*1\r\n$1\r\nabc\r\n",
		"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n",
		"*2\r\n*4\r\n:0\r\n:5\r\n*2\r\n$0\r\n\r\n:7000\r\n*2\r\n$1\r\n?\r\n:7001\r\n*3\r\n:5\r\n:6\r\n*2\r\n$1\r\na\r\n:0\r\n",
		"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n",
		"*4\r\n$12\r\nconfig-epoch\r\n$1\r\n7\r\n$5\r\nflags\r\n$6\r\nmaster\r\n",
	} {
		f.Add([]byte(reply))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		listOf := func(b []byte) ([]any, error) {
			reply, err := readOnlyReply(bufio.NewReader(bytes.NewReader(b)))
			if err != nil {
				return nil, err
			}
			return replyList(reply, "CLUSTER")
		}
		if list, err := listOf(said); err == nil {
			if again, err := listOf(appendReply(nil, list)); err != nil || !same(again, list) {
				t.Errorf("%q is %v, and then %v, %v", said, list, again, err)
			}
			if l, all, err := readSlotsReply(list, "127.0.0.1:1"); err == nil {
				for slot, n := range l.SlotOwners {
					if int(n) > len(l.Addrs) {
						t.Fatalf("%q: slot %d is on node %d of %d", said, slot, n, len(l.Addrs))
					}
				}
				for _, addr := range all {
					if strings.Count(addr, ":") == 0 {
						t.Errorf("%q: %q is no address", said, addr)
					}
				}
			}
			for name, value := range pairsToMap(list) {
				if len(name)+len(value) > len(said) {
					t.Errorf("%q: %q is %q", said, name, value)
				}
			}
		}
		// The same as a count.
		n, err := readInteger(bufio.NewReader(bytes.NewReader(said)))
		if err != nil && n != 0 && !strings.Contains(err.Error(), "value out of range") {
			t.Errorf("%q: %d, and %v", said, n, err)
		}
		if line, ok := strings.CutPrefix(string(said), ":"); ok && err == nil {
			line, _, _ = strings.Cut(line, "\r\n")
			if want, err := strconv.ParseInt(line, 10, 64); err != nil || n != want {
				t.Errorf("%q: %d, want %d, %v", said, n, want, err)
			}
		}
	})
}

// same compares replies; an empty list and none are the same.
func same(a, b []any) bool { return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b) }
