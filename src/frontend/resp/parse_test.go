package resp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// parseAll returns the commands of input, each as a line of quoted arguments, and the fault at the end.
func parseAll(input []byte, limits parseLimits, packet func() int) string {
	var p parser
	var text strings.Builder
	for seen, begin := 0, 0; ; {
		args, size, f := p.next(nil, input[begin:seen], limits)
		switch {
		case f != nil:
			return text.String() + "fault: " + f.Text
		case size > 0:
			fmt.Fprintf(&text, "%q\n", args)
			begin += size
		case seen == len(input):
			return text.String()
		default:
			seen = min(len(input), seen+max(packet(), 1))
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	limits := parseLimits{bytes: 1 << 10, args: 4}
	long := strings.Repeat("x", 1<<10)
	for _, tt := range []struct{ input, want string }{
		{"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", `["ECHO" ""]` + "\n"},
		{"*1\r\n$6\r\na\r\nb\x00c\r\n", `["a\r\nb\x00c"]` + "\n"},
		{"*0\r\n*1\r\n$1\r\na\r\n", "[]\n" + `["a"]` + "\n"},
		{"*2\r\n$4\r\nECHO\r\n$10\r\nabc", ""},
		{"PING\r\n\r\n  a  b\tc \n", `["PING"]` + "\n[]\n" + `["a" "b" "c"]` + "\n"},
		{"*5\r\n", "fault: Protocol error: invalid multibulk length; at most 4 is allowed"},
		{"*-1\r\n", "fault: Protocol error: invalid multibulk length; at most 4 is allowed"},
		{"*\r\n", "fault: Protocol error: invalid multibulk length; at most 4 is allowed"},
		{"*1\r\n:1\r\n", `fault: Protocol error: expected '$', got ":"`},
		{"*1\r\n$-1\r\n", "fault: Protocol error: invalid bulk length; at most 1024 is allowed"},
		{"*1\r\n$1025\r\n", "fault: Protocol error: invalid bulk length; at most 1024 is allowed"},
		{"*1\r\n$1024\r\n" + long + "\r\n", "fault: Protocol error: the command is longer than 1024 bytes"},
		{"*1\r\n$99999999999999999999999999\r\n", "fault: Protocol error: invalid bulk length; at most 1024 is allowed"},
		{"*1\r\n$00000000000000000000000000000000001\r\n", "fault: Protocol error: invalid bulk length"},
		{"*1\r\n$1\r\nabc", `fault: Protocol error: expected CRLF behind an argument, got "bc"`},
		{"*1\r\n$1\rx", "fault: Protocol error: invalid bulk length"},
		{"a b c d e\r\n", "fault: Protocol error: more than 4 arguments"},
		{"ECHO \"a\"\r\n", "fault: Protocol error: quotes in an inline request; send an array of bulk strings"},
		{long, "fault: Protocol error: too big inline request; at most 1024 bytes are allowed"},
		{"POST / HTTP/1.1\r\n", "fault: Protocol error: this is HTTP; the port speaks the protocol of Redis"},
		{
			"GET / HTTP/1.1\r\nHost: x\r\n",
			`["GET" "/" "HTTP/1.1"]` + "\nfault: Protocol error: this is HTTP; the port speaks the protocol of Redis",
		},
	} {
		for _, packet := range []int{len(tt.input), 1, 3} {
			if got := parseAll([]byte(tt.input), limits, func() int { return packet }); got != tt.want {
				t.Errorf("%.40q in packets of %d: got %q, want %q", tt.input, packet, got, tt.want)
			}
		}
	}
}

// readCommands is a slow and simple reader of what clients send, without inline commands. It returns the commands
// before the first flaw.
func readCommands(input string, limits parseLimits) (commands []string) {
	number := func(kind byte, most int) (n int, ok bool) {
		line, rest, found := strings.Cut(input, "\r\n")
		if !found || len(line) < 2 || len(line) > 31 || line[0] != kind || strings.TrimLeft(line[1:], "0123456789") != "" {
			return 0, false
		}
		n, err := strconv.Atoi(line[1:])
		input = rest
		return n, err == nil && n <= most
	}
	for {
		start := len(input)
		count, ok := number('*', limits.args)
		if !ok {
			return commands
		}
		args := [][]byte{}
		for range count {
			n, ok := number('$', limits.bytes)
			if !ok || len(input) < n+2 || input[n:n+2] != "\r\n" || start-len(input)+n+2 > limits.bytes {
				return commands
			}
			args = append(args, []byte(input[:n]))
			input = input[n+2:]
		}
		commands = append(commands, fmt.Sprintf("%q", args))
	}
}

// FuzzParse checks commands against a simple reader, and that packets change nothing.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*0\r\n*1\r\n$0\r\n\r\n", "PING\r\nPING a\n", "*1\r\n$3\r\nabc", "*5\r\n",
		"*1\r\n$1\r\nabc\r\n", "\r\n", "*1\r\n$1x",
	} {
		f.Add([]byte(seed), uint64(len(seed)))
	}
	f.Fuzz(func(t *testing.T, input []byte, seed uint64) {
		limits, random := parseLimits{bytes: 64, args: 4}, rand.New(rand.NewPCG(seed, 1))
		whole := parseAll(input, limits, func() int { return len(input) })
		for name, packet := range map[string]func() int{
			"by the byte": func() int { return 1 },
			"at random":   func() int { return 1 + random.IntN(20) },
		} {
			if got := parseAll(input, limits, packet); got != whole {
				t.Errorf("%q %s: got %q, at once %q", input, name, got, whole)
			}
		}
		if !bytes.HasPrefix(input, []byte("*")) {
			return
		}
		for i, want := range readCommands(string(input), limits) {
			if got := strings.SplitN(whole, "\n", i+2); len(got) < i+2 || got[i] != want {
				t.Fatalf("%q: got %q, want command %d to be %s", input, whole, i, want)
			}
		}
	})
}

func TestParseInteger(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0", "-0", "+7", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
		"-9223372036854775809", "", "-", "1x", " 1", "0x1", "99999999999999999999", "0000000000000000000000001",
	} {
		want, err := strconv.ParseInt(text, 10, 64)
		got, ok := parseInteger([]byte(text))
		if len(text) > 20 { // Longer numbers are refused, also those with zeros in front.
			want, err = 0, strconv.ErrRange
		}
		if ok != (err == nil) || ok && got != want {
			t.Errorf("%q: got %d, %t, want %d, %v", text, got, ok, want, err)
		}
	}
}
