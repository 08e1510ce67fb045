package resp

import (
	"bytes"

	"ratelimit/src/frontend/pipeline"
)

const (
	// maxArgs is the most arguments of a command, its name included. RATELIMIT with 1,000 entries fits.
	maxArgs = 2048
	// maxInlineBytes is the longest command without a header.
	maxInlineBytes = 64 << 10
	// maxHeaderBytes is the longest line that tells a number of arguments or a length.
	maxHeaderBytes = 32
	// minCommandBytes is the least value of Config.MaxInputBytes. It has room for the bounds of clients without a
	// password.
	minCommandBytes = 1 << 10
	// maxKeptArgs is how many arguments a parser keeps the memory for.
	maxKeptArgs = 16
)

// parseLimits bound the commands that a client may send. As in Redis, clients that have to send a password first may
// send less.
type parseLimits struct{ bytes, args int }

var limitsBeforeAuth = parseLimits{bytes: minCommandBytes, args: 10}

// span is a part of a command: its first bytes end at begin.
type span struct{ begin, end int }

// parser finds the commands in the input of a connection. It remembers how much of an incomplete command it has seen,
// so that the work is proportional to the input, however small its packets are.
//
//	command = "*" count CRLF count*("$" length CRLF bytes CRLF) | inline
//	inline  = words, separated by blanks, CRLF or LF
//
// Source: the specification of RESP, redis.io/docs/latest/develop/reference/protocol-spec
type parser struct {
	args       []span // the arguments that have been seen of the incomplete command.
	wantedArgs int    // 0 if the header of the command is incomplete.
	pos        int    // where the next argument of the incomplete command starts.
}

// next returns the arguments of the first command of input, which point into it, and its size in bytes. It appends the
// arguments to dst. The size is 0 if the command is incomplete. A command may have no arguments. The next input must
// start with the same bytes.
func (p *parser) next(dst [][]byte, input []byte, limits parseLimits) (args [][]byte, size int, f *pipeline.Fault) {
	if len(input) == 0 {
		return dst, 0, nil
	}
	if p.wantedArgs == 0 {
		if input[0] != '*' {
			return parseInline(dst, input, limits)
		}
		n, end, f := parseHeader(input, "multibulk", limits.args)
		if f != nil || end == 0 || n == 0 {
			return dst, end, f
		}
		p.wantedArgs, p.pos = n, end
	}
	for len(p.args) < p.wantedArgs {
		rest := input[p.pos:]
		if len(rest) == 0 {
			return dst, 0, nil
		}
		if rest[0] != '$' {
			return dst, 0, pipeline.Faultf("Protocol error: expected '$', got %q", rest[:1])
		}
		n, begin, f := parseHeader(rest, "bulk", limits.bytes)
		if f != nil || begin == 0 {
			return dst, 0, f
		}
		begin += p.pos
		end := begin + n
		if end+2 > limits.bytes {
			return dst, 0, pipeline.Faultf("Protocol error: the command is longer than %d bytes", limits.bytes)
		}
		if len(input) < end+2 {
			return dst, 0, nil
		}
		if input[end] != '\r' || input[end+1] != '\n' {
			return dst, 0, pipeline.Faultf("Protocol error: expected CRLF behind an argument, got %q", input[end:end+2])
		}
		p.args = append(p.args, span{begin, end})
		p.pos = end + 2
	}
	for _, a := range p.args {
		dst = append(dst, input[a.begin:a.end:a.end])
	}
	size = p.pos
	p.args, p.wantedArgs = p.args[:0], 0
	if cap(p.args) > maxKeptArgs {
		p.args = nil
	}
	return dst, size, nil
}

// parseHeader returns the number in the line that input starts with, and where the line ends; 0 if it is incomplete.
// The first byte is not read. kind is for errors.
func parseHeader(input []byte, kind string, most int) (n, end int, f *pipeline.Fault) {
	for i := 1; i < len(input) && i < maxHeaderBytes; i++ {
		switch c := input[i]; {
		case '0' <= c && c <= '9' && n <= most:
			n = 10*n + int(c-'0')
		case c == '\r' && i > 1 && n <= most:
			if i+1 == len(input) {
				return 0, 0, nil
			}
			if input[i+1] == '\n' {
				return n, i + 2, nil
			}
			return 0, 0, pipeline.Faultf("Protocol error: invalid %s length", kind)
		default:
			return 0, 0, pipeline.Faultf("Protocol error: invalid %s length; at most %d is allowed", kind, most)
		}
	}
	if len(input) >= maxHeaderBytes {
		return 0, 0, pipeline.Faultf("Protocol error: invalid %s length", kind)
	}
	return 0, 0, nil
}

// parseInline returns the words of the line that input starts with, as next does.
func parseInline(dst [][]byte, input []byte, limits parseLimits) (args [][]byte, size int, f *pipeline.Fault) {
	most := min(maxInlineBytes, limits.bytes)
	end := bytes.IndexByte(input[:min(len(input), most)], '\n')
	switch {
	case end < 0 && len(input) >= most:
		return dst, 0, pipeline.Faultf("Protocol error: too big inline request; at most %d bytes are allowed", most)
	case end < 0:
		return dst, 0, nil
	}
	line, first := bytes.TrimSuffix(input[:end], []byte("\r")), len(dst)
	if bytes.ContainsAny(line, `"'`) {
		return dst, 0, pipeline.Faultf("Protocol error: quotes in an inline request; send an array of bulk strings")
	}
	for word := range bytes.FieldsSeq(line) {
		if len(dst)-first == limits.args {
			return dst, 0, pipeline.Faultf("Protocol error: more than %d arguments", limits.args)
		}
		dst = append(dst, word)
	}
	// A browser that a foreign page makes send a request with commands in its body gets no further than its header.
	if len(dst) > first && (string(dst[first]) == "POST" || bytes.EqualFold(dst[first], []byte("host:"))) {
		return dst, 0, pipeline.Faultf("Protocol error: this is HTTP; the port speaks the protocol of Redis")
	}
	return dst, end + 1, nil
}
