package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/rls"
)

// Workloads are the names of all workloads.
var Workloads = []string{"uniform", "hot", "zipf", "multi", "overlimit", noMatchWorkload}

const (
	noMatchWorkload  = "nomatch"
	noRuleKey        = "no_rule_has_this_key" // the key in requests of the workload nomatch.
	multiDescriptors = 4                      // the number of descriptors in a request of the workload multi.
	// zipfExponent is the skew of zipf: of 100,000 keys the first gets an eighth of the requests, and the first hundred
	// get more than half of them.
	zipfExponent = 1.1
)

// A run holds at most maxLoadBytes of messages, each counted with messageOverhead. A million short messages fit.
const (
	maxLoadBytes    = 128 << 20
	messageOverhead = 64
	maxLine         = 1 << 20 // bounds the bytes of a line in a file of requests.
)

// Load is the messages to send, and the choice of a message for each call.
type Load struct {
	name      string // of the workload or the file.
	keys      int    // the number of values of the key; 0 for a file.
	messages  []mem.BufferSlice
	bytes     int // the size of messages, with messageOverhead for each.
	maxBytes  int
	newPicker newPicker
	limits    limitsSeen
}

// Messages returns a function from the number of a call to its message. One goroutine at a time may call it.
func (l *Load) Messages(seed uint64) func(call uint64) []byte {
	pick := l.newPicker(seed, len(l.messages))
	return func(call uint64) []byte { return l.messages[pick(call)][0].ReadOnlyData() }
}

func newLoad(cfg *Config) (*Load, error) {
	if cfg.RequestsFile != "" {
		l := &Load{name: cfg.RequestsFile, maxBytes: maxLoadBytes, newPicker: inTurn}
		file, err := os.Open(cfg.RequestsFile)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // Closing a file that was only read loses nothing.
		return l, l.addLines(cfg.RequestsFile, file)
	}
	l := &Load{name: cfg.Workload, keys: 1, maxBytes: maxLoadBytes, newPicker: inTurn}
	switch cfg.Workload {
	case "hot", "overlimit": // The value of the key is the name of the workload.
		return l, l.add(newRequest(cfg.Domain, cfg.Key, cfg.Workload))
	case noMatchWorkload:
		return l, l.add(newRequest(cfg.Domain, noRuleKey, "x"))
	case "zipf":
		l.newPicker = zipf
	default:
		l.newPicker = uniform
	}
	l.keys = cfg.Keys
	values := make([]string, 1)
	if cfg.Workload == "multi" {
		values = make([]string, multiDescriptors)
	}
	digits := len(strconv.Itoa(cfg.Keys - 1)) // Numbers are padded with zeros, so that all messages have the same length.
	for k := 0; k < cfg.Keys; k += len(values) {
		for i := range values {
			values[i] = fmt.Sprintf("%0*d", digits, (k+i)%cfg.Keys)
		}
		if err := l.add(newRequest(cfg.Domain, cfg.Key, values...)); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func newRequest(domain, key string, values ...string) *pb.RateLimitRequest {
	msg := &pb.RateLimitRequest{Domain: domain}
	for _, v := range values {
		msg.Descriptors = append(msg.Descriptors, &common.RateLimitDescriptor{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: v}},
		})
	}
	return msg
}

func (l *Load) add(msg *pb.RateLimitRequest) error {
	wire, err := proto.Marshal(msg)
	if err != nil {
		return fmt.Errorf("a request for domain %q: %w", msg.GetDomain(), err)
	}
	if l.bytes += len(wire) + messageOverhead; l.bytes > l.maxBytes {
		return fmt.Errorf("the requests take more than %d MiB of memory: take fewer or shorter ones", l.maxBytes>>20)
	}
	l.messages = append(l.messages, mem.BufferSlice{mem.SliceBuffer(wire)})
	return nil
}

// addLines adds the requests of a file: a RateLimitRequest as proto3 JSON on each line that is not blank.
func (l *Load) addLines(name string, r io.Reader) error {
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
			return fmt.Errorf("%s:%d: not a RateLimitRequest as JSON: %s", name, line, rls.JSONErrorText(err))
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

// newPicker returns a function from the number of a call to the index of its message, below count. One goroutine at a
// time may call the function. Its result does not depend on earlier calls, so it is the same for all workers.
type newPicker func(seed uint64, count int) func(call uint64) int

func inTurn(_ uint64, count int) func(uint64) int {
	return func(call uint64) int { return int(call % uint64(count)) }
}

func uniform(seed uint64, count int) func(uint64) int {
	var source rand.PCG
	r := rand.New(&source)
	return func(call uint64) int {
		source.Seed(seed, call)
		return r.IntN(count)
	}
}

func zipf(seed uint64, count int) func(uint64) int {
	var source rand.PCG
	z := rand.NewZipf(rand.New(&source), zipfExponent, 1, uint64(count-1))
	return func(call uint64) int {
		source.Seed(seed, call)
		return int(z.Uint64())
	}
}
