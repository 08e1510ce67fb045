package divvy

import (
	"bytes"
	"context"

	"ratelimit/src/frontend/pipeline"
)

// session answers the lines of one connection.
type session struct {
	srv     *Server
	scanned int // how many bytes at the start of the next input have no line end.
}

// Answer implements pipeline.Session.
func (s *session) Answer(ctx context.Context, input []byte, atEnd bool,
	r *pipeline.Replies,
) (consumed, requests int, err error) {
	b := s.srv.newBatch(ctx, r)
	var f *pipeline.Fault
	for f == nil {
		line, size := s.nextLine(input[consumed:], atEnd)
		if size == 0 {
			break
		}
		consumed += size
		requests++
		f = b.addRequest(line)
		if err := r.FlushIfLarge(); err != nil {
			return consumed, requests, err
		}
	}
	if earlier := b.decideRequests(); earlier != nil {
		f = earlier
	}
	// One more byte may be the "\r" of the line end.
	if most := s.srv.cfg.MaxLineBytes; f == nil && len(input)-consumed > most+1 {
		f = errLongLine(most)
	}
	b.returnToPool()
	if f != nil {
		return consumed, requests, f
	}
	return consumed, requests, nil
}

// nextLine returns the first line of input without "\n" or "\r\n", and its size with them. If atEnd is set, the last
// line needs no line end. The size is 0 if there is no whole line.
func (s *session) nextLine(input []byte, atEnd bool) (line []byte, size int) {
	i := bytes.IndexByte(input[s.scanned:], '\n')
	if i < 0 && !atEnd {
		s.scanned = len(input)
		return nil, 0
	}
	end := s.scanned + i
	s.scanned = 0
	if i < 0 {
		return input, len(input)
	}
	return bytes.TrimSuffix(input[:end], carriageReturn), end + 1
}

var carriageReturn = []byte("\r")
