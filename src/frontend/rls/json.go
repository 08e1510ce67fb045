package rls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/limiter"
)

// maxBody bounds the body of a /json request.
const maxBody = 1 << 20

// JSON answers the same messages as gRPC, in proto3 JSON: 200 for OK, 429 for
// OVER_LIMIT, 4xx for an invalid request and 5xx if the service fails.
func (s *Service) JSON() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.serveJSON(w, r); err != nil {
			WriteError(w, err)
		}
	})
}

func (s *Service) serveJSON(w http.ResponseWriter, r *http.Request) (err error) {
	defer s.recovered(&err)
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "send a RateLimitRequest with POST", http.StatusMethodNotAllowed)
		return nil
	}
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	text, over, err := s.answerJSON(r.Context(), w.Header(), body)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if over {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(append(text, '\n')) // a caller that has gone needs no answer
	return nil
}

// answerJSON decides on the request in body, in its turn if it is large. What it allocates
// meanwhile is charged to the connection. It returns the reply and whether the request is
// over its limits, and sets the headers that tell of a limit.
func (s *Service) answerJSON(ctx context.Context, headers http.Header, body []byte) (text []byte, over bool, err error) {
	begun := time.Now()
	t, err := s.turns.begin(ctx, s.jsonBytes(body))
	if err != nil {
		s.cfg.OnError(err)
		return nil, false, err
	}
	defer t.end()
	if conn := connlimit.FromContext(ctx); t.bytes > 0 && conn.Hold(t.bytes) {
		defer conn.Release(t.bytes)
	} else if t.bytes > 0 {
		err := fmt.Errorf("rls: a body of %d bytes: the connection is closed, since it held the most when MAX_BUFFERED_BYTES was reached: %w", len(body), context.Canceled)
		s.cfg.OnError(err)
		return nil, false, err
	}
	data, err := fromJSON(body)
	if err != nil {
		return nil, false, err
	}
	c := s.newCall(&t)
	defer s.release(c)
	err = s.decide(ctx, c, data, &t)
	s.cfg.OnCall("json", "ShouldRateLimit", time.Since(begun))
	if err != nil {
		return nil, false, err
	}
	if text, err = s.replyJSON(c, headers); err != nil {
		s.cfg.OnError(err)
	}
	return text, c.answer.Over, err
}

// ReadJSON reads the request in the body of r, as /json does. Its errors are for
// WriteError.
func ReadJSON(w http.ResponseWriter, r *http.Request) (*limiter.Request, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	return ParseJSON(body)
}

// ParseJSON reads a RateLimitRequest in proto3 JSON. The request has memory of its own.
// An error of the class limiter.ErrRequest says what the request has too much of, any
// other what is wrong with the text, and at which column.
func ParseJSON(text []byte) (*limiter.Request, error) {
	data, err := fromJSON(text)
	if err != nil {
		return nil, err
	}
	c := new(call)
	err = c.scan(data)
	return &c.req, err
}

// fromJSON returns the RateLimitRequest in text as it is on the wire.
func fromJSON(text []byte) ([]byte, error) {
	if bytes.Count(text, []byte{'{'}) > 1+2*limiter.MaxDescriptors+maxEntries { // each object takes memory
		return nil, errTooManyObjects
	}
	msg := new(pb.RateLimitRequest)
	if err := protojson.Unmarshal(text, msg); err != nil {
		return nil, syntaxError(jsonProblem(err))
	}
	if n := len(msg.GetDescriptors()); n > limiter.MaxDescriptors {
		return nil, fmt.Errorf("%w: %d descriptors, at most %d are allowed", limiter.ErrTooLarge, n, limiter.MaxDescriptors)
	}
	return proto.Marshal(msg)
}

// syntaxError is the reason why a text is not a RateLimitRequest.
type syntaxError string

func (e syntaxError) Error() string { return string(e) }

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, fmt.Errorf("%w: the body is larger than 1 MiB", limiter.ErrTooLarge)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the body could not be read", limiter.ErrRequest)
	}
	return body, nil
}

// place matches the position that begins most error texts of protojson.
var place = regexp.MustCompile(`^(?:syntax error )?\(line (\d+):(\d+)\): `)

// jsonProblem returns the text of an error of protojson in stable words: protojson writes
// one of two kinds of blank after "proto:", at random, so that nothing depends on them.
func jsonProblem(err error) string {
	text := strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:"))
	at := place.FindStringSubmatch(text)
	switch {
	case at == nil:
		return text
	case at[1] == "1":
		return "column " + at[2] + ": " + text[len(at[0]):]
	}
	return "line " + at[1] + ", column " + at[2] + ": " + text[len(at[0]):]
}

// maxProblem bounds in bytes what callers are told: protojson may repeat the whole body.
const maxProblem = 300

// WriteError answers with what a caller may know of err, which is of ReadJSON or of the
// limiter.
func WriteError(w http.ResponseWriter, err error) {
	class := classOf(err)
	if syntax, ok := errors.AsType[syntaxError](err); ok {
		if len(syntax) > maxProblem {
			syntax = syntaxError(strings.ToValidUTF8(string(syntax[:maxProblem]), "")) + "…"
		}
		class.status, class.text = http.StatusBadRequest, "the body is not a RateLimitRequest: "+string(syntax)
	}
	http.Error(w, class.text, class.status)
}
