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

// maxBodyBytes bounds the body of a /json request.
const maxBodyBytes = 1 << 20

// JSONHandler returns the handler that answers the same messages as gRPC in proto3 JSON. The status is 200 for OK, 429
// for OVER_LIMIT, 4xx for an invalid request and 5xx if the service fails.
func (s *Service) JSONHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.serveJSON(w, r); err != nil {
			WriteError(w, err)
		}
	})
}

func (s *Service) serveJSON(w http.ResponseWriter, r *http.Request) (err error) {
	defer s.recoverPanic(&err)
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
	_, _ = w.Write(append(text, '\n')) // Write fails only if the caller has gone.
	return nil
}

// answerJSON decides the request in body and sets the response headers about its limits. It returns the reply, and
// whether the request is over its limits. Large bodies wait for memory and charge what they allocate to the connection.
func (s *Service) answerJSON(
	ctx context.Context, headers http.Header, body []byte,
) (text []byte, over bool, err error) {
	start := time.Now()
	t, err := s.largeRequests.reserve(ctx, s.estimateJSONMemory(body))
	if err != nil {
		return nil, false, s.reportError(err)
	}
	defer t.release()
	conn := connlimit.AccountFromContext(ctx)
	if !conn.HoldBytes(t.reservedBytes) {
		return nil, false, s.reportError(fmt.Errorf("rls: a body of %d bytes: the connection is closed, since it held the "+
			"most when MAX_BUFFERED_BYTES was reached: %w", len(body), context.Canceled))
	}
	defer conn.ReleaseBytes(t.reservedBytes)
	data, err := jsonToProtobuf(body)
	if err != nil {
		return nil, false, err
	}
	c := s.newCall(&t)
	defer s.releaseCall(c)
	err = s.decideMessage(ctx, c, "json", data, &t)
	s.cfg.OnCalls("json", "ShouldRateLimit", 1, time.Since(start))
	if err != nil {
		return nil, false, s.reportError(err)
	}
	text, err = s.jsonReply(c, headers)
	return text, c.answer.Over, s.reportError(err)
}

// reportError calls Config.OnError with err, unless it is nil, and returns err.
func (s *Service) reportError(err error) error {
	if err != nil {
		s.cfg.OnError(err)
	}
	return err
}

// ReadJSON reads the request in the body of r, as /json does. Its errors are for WriteError.
func ReadJSON(w http.ResponseWriter, r *http.Request) (*limiter.Request, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	return ParseJSON(body)
}

// ParseJSON reads a RateLimitRequest in proto3 JSON. The request does not refer to text. If the request is too large,
// the error wraps limiter.ErrRequestTooLarge; any other error says what is wrong with the text, and at which column.
func ParseJSON(text []byte) (*limiter.Request, error) {
	data, err := jsonToProtobuf(text)
	if err != nil {
		return nil, err
	}
	c := new(callMemory)
	err = c.decodeRequest(data)
	return &c.req, err
}

// jsonToProtobuf converts a RateLimitRequest from proto3 JSON to protobuf's wire format.
func jsonToProtobuf(text []byte) ([]byte, error) {
	// Decoding allocates memory for each JSON object.
	if bytes.Count(text, []byte{'{'}) > 1+2*limiter.MaxDescriptors+maxRequestEntries {
		return nil, errTooManyJSONObjects
	}
	msg := new(pb.RateLimitRequest)
	if err := protojson.Unmarshal(text, msg); err != nil {
		return nil, syntaxError(JSONErrorText(err))
	}
	if n := len(msg.GetDescriptors()); n > limiter.MaxDescriptors {
		return nil, fmt.Errorf("%w: %d descriptors, at most %d are allowed", limiter.ErrRequestTooLarge, n,
			limiter.MaxDescriptors)
	}
	return proto.Marshal(msg)
}

// syntaxError says why a text is not a RateLimitRequest.
type syntaxError string

func (e syntaxError) Error() string { return string(e) }

// readBody reads the body of r into memory that is allocated once if the length is known, and is charged to the
// connection before.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := readCharged(http.MaxBytesReader(w, r.Body, maxBodyBytes), r.ContentLength,
		connlimit.AccountFromContext(r.Context()))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, fmt.Errorf("%w: the body is larger than 1 MiB", limiter.ErrRequestTooLarge)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the body could not be read", limiter.ErrInvalidRequest)
	}
	return body, nil
}

// readCharged reads all of in, which has that length, or one that is unknown if it is negative. conn is charged for
// memory until it is full: what is read into it is charged by the connection.
func readCharged(in io.Reader, length int64, conn *connlimit.MemoryAccount) (body []byte, err error) {
	room := int64(0) // what conn is charged here.
	defer func() { conn.ReleaseBytes(room) }()
	more := min(max(length, 0), maxBodyBytes) + bytes.MinRead
	for err == nil {
		if len(body) == cap(body) {
			if room += more; !conn.HoldBytes(more) {
				return nil, context.Canceled
			}
			body = append(make([]byte, 0, int64(cap(body))+more), body...)
			more = int64(cap(body))
		}
		var n int
		n, err = in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		read := min(int64(n), room)
		conn.ReleaseBytes(read)
		room -= read
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return body, err
}

// errorPositionPattern matches the line and the column at the start of most error texts of protojson.
var errorPositionPattern = regexp.MustCompile(`^(?:syntax error )?\(line (\d+):(\d+)\): `)

// JSONErrorText returns the text of an error of protojson without its prefix "proto:", after which protojson writes one
// of two kinds of space at random.
func JSONErrorText(err error) string {
	text := strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:"))
	position := errorPositionPattern.FindStringSubmatch(text)
	switch {
	case position == nil:
		return text
	case position[1] == "1":
		return "column " + position[2] + ": " + text[len(position[0]):]
	}
	return "line " + position[1] + ", column " + position[2] + ": " + text[len(position[0]):]
}

// maxSyntaxErrorBytes is how many bytes of a syntax error callers get. protojson may quote the whole body.
const maxSyntaxErrorBytes = 300

// WriteError answers with the status and the text for err, an error of ReadJSON or of the limiter.
func WriteError(w http.ResponseWriter, err error) {
	class := errorClassOf(err)
	if syntax, ok := errors.AsType[syntaxError](err); ok {
		if len(syntax) > maxSyntaxErrorBytes {
			syntax = syntaxError(strings.ToValidUTF8(string(syntax[:maxSyntaxErrorBytes]), "")) + "…"
		}
		class.httpStatus, class.callerText = http.StatusBadRequest, "the body is not a RateLimitRequest: "+string(syntax)
	}
	http.Error(w, class.callerText, class.httpStatus)
}
