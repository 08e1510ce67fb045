package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxLine is the longest line of a file of requests, in bytes.
const maxLine = 1 << 20

func (l *load) readFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	return l.read(path, file)
}

// read adds the requests of a file with one RateLimitRequest, as proto3 JSON, on each line. It skips blank lines.
func (l *load) read(name string, r io.Reader) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	line := 1
	for ; scanner.Scan(); line++ {
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		var msg pb.RateLimitRequest
		if err := protojson.Unmarshal(text, &msg); err != nil {
			return fmt.Errorf("%s:%d: not a RateLimitRequest as JSON: %s", name, line, jsonProblem(err))
		}
		if err := l.add(&msg); err != nil {
			return fmt.Errorf("%s:%d: %w", name, line, err)
		}
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: the line is longer than %d MiB", name, line, maxLine>>20)
	case err != nil:
		return fmt.Errorf("%s:%d: %w", name, line, err)
	case len(l.messages) == 0:
		return fmt.Errorf("%s: no requests in it", name)
	}
	return nil
}

// place is the beginning of most errors of protojson, which sees one line only.
var place = regexp.MustCompile(`^(?:syntax error )?\(line 1:(\d+)\): `)

func jsonProblem(err error) string {
	text := strings.TrimSpace(strings.TrimPrefix(err.Error(), "proto:")) // a blank or a no-break space follows
	return place.ReplaceAllString(text, "column $1: ")
}
