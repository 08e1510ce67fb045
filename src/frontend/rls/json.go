package rls

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/limiter"
)

// maxBody bounds the body of a /json request.
const maxBody = 1 << 20

// JSON answers the same messages as gRPC, in proto3 JSON: 200 for OK, 429 for
// OVER_LIMIT, 4xx when the caller is at fault and 5xx when we are.
func (s *Service) JSON() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.cfg.Fallback(&PanicError{p, debug.Stack()})
				http.Error(w, "internal error", http.StatusInternalServerError)
			}
		}()
		s.serveJSON(w, r)
	})
}

func (s *Service) serveJSON(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "send a RateLimitRequest with POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		WriteError(w, err)
		return
	}
	text, resp, err := s.answerJSON(r.Context(), body)
	if err != nil {
		WriteError(w, err)
		return
	}
	for _, h := range resp.GetResponseHeadersToAdd() {
		w.Header().Set(h.GetKey(), h.GetValue())
	}
	w.Header().Set("Content-Type", "application/json")
	if resp.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(append(text, '\n')) // a caller that has gone needs no answer
}

// answerJSON decodes body and decides on it, in its turn if it is large. What it
// allocates meanwhile is charged to the connection. The reply is returned as text, too.
func (s *Service) answerJSON(ctx context.Context, body []byte) ([]byte, *pb.RateLimitResponse, error) {
	begun := time.Now()
	t, err := s.turns.begin(ctx, s.jsonBytes(body))
	if err != nil {
		s.cfg.Fallback(err)
		return nil, nil, err
	}
	defer t.end()
	if conn := connlimit.FromContext(ctx); t.bytes > 0 && conn.Hold(t.bytes) {
		defer conn.Release(t.bytes)
	} else if t.bytes > 0 {
		err := fmt.Errorf("rls: a body of %d bytes: the connection is closed, since it held the most when MAX_BUFFERED_BYTES was reached: %w", len(body), context.Canceled)
		s.cfg.Fallback(err)
		return nil, nil, err
	}
	msg, err := decodeJSON(body)
	if err != nil {
		return nil, nil, err
	}
	resp, err := s.decide(ctx, msg, &t)
	s.cfg.OnCall("json", "ShouldRateLimit", time.Since(begun))
	if err != nil {
		return nil, nil, err
	}
	text, err := marshal(resp)
	if err != nil {
		s.cfg.Fallback(err)
	}
	return text, resp, err
}

// crowded reports whether a text has so many objects that it is no request to
// spend memory on.
func crowded(text []byte) bool {
	return bytes.Count(text, []byte{'{'}) > 1+2*limiter.MaxDescriptors+maxEntries
}

// ReadJSON reads the request that r has in its body, as /json takes it. What is
// wrong with it is for WriteError.
func ReadJSON(w http.ResponseWriter, r *http.Request) (*limiter.Request, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	msg, err := decodeJSON(body)
	if err != nil {
		return nil, err
	}
	return Request(msg), nil
}

// Request is msg as the limiter has it.
func Request(msg *pb.RateLimitRequest) *limiter.Request {
	var c call
	c.read(msg)
	return &c.req
}

// bodyError is what is wrong with a body, for its sender.
type bodyError struct {
	status int
	text   string
}

func (e *bodyError) Error() string { return e.text }

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			return nil, &bodyError{http.StatusRequestEntityTooLarge, "the body is larger than 1 MiB"}
		}
		return nil, &bodyError{http.StatusBadRequest, "the body could not be read"}
	}
	return body, nil
}

// maxProblem bounds in bytes what is said of a body: protojson may repeat all of it.
const maxProblem = 300

func decodeJSON(body []byte) (*pb.RateLimitRequest, error) {
	if crowded(body) {
		return nil, &bodyError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d descriptors or %d entries", limiter.MaxDescriptors, maxEntries)}
	}
	msg := new(pb.RateLimitRequest)
	if err := protojson.Unmarshal(body, msg); err != nil {
		problem := err.Error()
		if len(problem) > maxProblem {
			problem = strings.ToValidUTF8(problem[:maxProblem], "") + "…"
		}
		return nil, &bodyError{http.StatusBadRequest, "the body is not a RateLimitRequest: " + problem}
	}
	return msg, nil
}

// WriteError answers with what a caller may know of err, be it of ReadJSON or
// of the limiter.
func WriteError(w http.ResponseWriter, err error) {
	if body := new(bodyError); errors.As(err, &body) {
		http.Error(w, body.text, body.status)
		return
	}
	code := httpStatus(codeOf(err))
	if errors.Is(err, limiter.ErrTooLarge) {
		code = http.StatusRequestEntityTooLarge // gRPC has one code for this and for overload
	}
	http.Error(w, textOf(err), code)
}

// marshal writes proto3 JSON without the random blanks that protojson adds.
func marshal(resp *pb.RateLimitResponse) ([]byte, error) {
	loose, err := protojson.Marshal(resp)
	if err != nil {
		return nil, err
	}
	var tight bytes.Buffer
	if err := json.Compact(&tight, loose); err != nil {
		return nil, err
	}
	return tight.Bytes(), nil
}

func httpStatus(c codes.Code) int {
	switch c {
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}
