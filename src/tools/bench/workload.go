package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// Workloads are the names of all workloads.
var Workloads = []string{"hot", "uniform", "zipf", "multi", "overlimit", "nomatch"}

// noRuleKey is the key of nomatch.
const noRuleKey = "no_rule_has_this_key"

// zipfExponent is the skew of zipf: of 100,000 keys the first gets an eighth of the requests, and the first hundred more than
// half of them.
const zipfExponent = 1.1

// perRequest is how many descriptors a request of multi has.
const perRequest = 4

// maxMessages bounds all messages of a run, in bytes, each with messageCost. A million short ones fit.
const (
	maxMessages = 128 << 20
	messageCost = 64
)

// load is the messages to send, and which of them each call sends.
type load struct {
	name     string
	keys     int // values of the key; 0: unknown
	messages []message
	size     int // of messages, in bytes
	most     int // cap on size
	picker   picker
}

// newLoad marshals all requests of the run.
func newLoad(cfg *Config) (*load, error) {
	if cfg.RequestsFile != "" {
		l := &load{name: cfg.RequestsFile, most: maxMessages, picker: inTurn}
		return l, l.readFile(cfg.RequestsFile)
	}
	l := &load{name: cfg.Workload, keys: 1, most: maxMessages, picker: inTurn}
	switch cfg.Workload {
	case "hot", "overlimit": // the name is the value
		return l, l.add(request(cfg.Domain, cfg.Key, cfg.Workload))
	case "nomatch":
		return l, l.add(request(cfg.Domain, noRuleKey, "x"))
	case "zipf":
		l.picker = zipf
	default:
		l.picker = uniform
	}
	l.keys = cfg.Keys
	values := make([]string, 1)
	if cfg.Workload == "multi" {
		values = make([]string, perRequest)
	}
	digits := len(strconv.Itoa(cfg.Keys - 1)) // all messages of one length
	for k := 0; k < cfg.Keys; k += len(values) {
		for i := range values {
			values[i] = fmt.Sprintf("%0*d", digits, (k+i)%cfg.Keys)
		}
		if err := l.add(request(cfg.Domain, cfg.Key, values...)); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// request returns a request with a descriptor for each value.
func request(domain, key string, values ...string) *pb.RateLimitRequest {
	msg := &pb.RateLimitRequest{Domain: domain}
	for _, v := range values {
		msg.Descriptors = append(msg.Descriptors, &common.RateLimitDescriptor{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: v}},
		})
	}
	return msg
}

func (l *load) add(msg *pb.RateLimitRequest) error {
	wire, err := proto.Marshal(msg)
	if err != nil {
		return fmt.Errorf("a request for domain %q: %w", msg.GetDomain(), err)
	}
	if l.size += len(wire) + messageCost; l.size > l.most {
		return fmt.Errorf("the requests take more than %d MiB of memory: take fewer or shorter ones", l.most>>20)
	}
	l.messages = append(l.messages, newMessage(wire))
	return nil
}

// picker returns a function from the number of a call to the index of its message, below count, for one goroutine at a time. The
// result does not depend on earlier calls, so it is the same for all workers.
type picker func(seed uint64, count int) func(call uint64) int

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
