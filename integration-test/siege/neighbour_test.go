//go:build linux

package siege

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	neighbourRate = 200 // calls a second
	// neighbourInFlight bounds the calls under way; further ones are not made and
	// count as failed.
	neighbourInFlight = 2 * neighbourRate
)

// call is one of the neighbour's, which its process writes as a line of JSON.
type call struct {
	Sent    time.Time
	Took    time.Duration
	Code    codes.Code
	Problem string
}

// neighbour is a client that does nothing wrong: an even pace of small calls over a
// connection of its own. Attackers have machines of their own, so the neighbour is a
// process of its own: thousands of their goroutines in the same process would delay
// it however little the service does for them.
type neighbour struct {
	client pb.RateLimitServiceClient // for calls of an attack that does nothing wrong, from the process of the test.
	stdin  io.Closer                 // the process ends when it is closed.
	done   chan struct{}             // closed when the last call has ended and is known

	mu    sync.Mutex // guards what follows
	calls []call
	first string // error
}

// neighbourVariable makes this program the process of a neighbour; it has a neighbourOrder.
const neighbourVariable = "SIEGE_NEIGHBOUR"

// neighbourOrder is the service that a neighbour calls, the key of its descriptors, and the deadline of a call.
type neighbourOrder struct {
	Addr, Key string
	Deadline  time.Duration
}

// request asks for each entry's key and value in a descriptor of its own.
func request(entries ...[2]string) *pb.RateLimitRequest {
	r := &pb.RateLimitRequest{Domain: "siege"}
	for _, e := range entries {
		r.Descriptors = append(r.Descriptors,
			&common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: e[0], Value: e[1]}}})
	}
	return r
}

func connect(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func dial(t *testing.T, addr string) pb.RateLimitServiceClient {
	t.Helper()
	conn, err := connect(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewRateLimitServiceClient(conn)
}

// startNeighbour begins calls of a key.
func startNeighbour(t *testing.T, addr, key string, deadline time.Duration) *neighbour {
	t.Helper()
	order, err := json.Marshal(neighbourOrder{addr, key, deadline})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(self)
	process.Env, process.Stderr = append(os.Environ(), neighbourVariable+"="+string(order)), os.Stderr
	stdin, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	n := &neighbour{client: dial(t, addr), stdin: stdin, done: make(chan struct{})}
	t.Cleanup(n.end)
	go func() {
		defer close(n.done)
		for lines := json.NewDecoder(stdout); ; {
			var c call
			if err := lines.Decode(&c); err != nil {
				break
			}
			n.add(c)
		}
		if err := process.Wait(); err != nil {
			n.add(call{Sent: time.Now(), Code: codes.Aborted, Problem: fmt.Sprintf("the neighbour's process: %v", err)})
		}
	}()
	return n
}

// beNeighbour is the process of a neighbour. It calls until stdin ends.
func beNeighbour(text string) error {
	var order neighbourOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		return err
	}
	conn, err := connect(order.Addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := pb.NewRateLimitServiceClient(conn)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	var requests []*pb.RateLimitRequest
	for i := range 50 {
		requests = append(requests, request([2]string{order.Key, fmt.Sprintf("n%d", i)}))
	}
	var writing sync.Mutex
	lines := json.NewEncoder(os.Stdout)
	write := func(c call) {
		writing.Lock()
		defer writing.Unlock()
		_ = lines.Encode(c) // Who reads it has ended the process.
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	places := make(chan struct{}, neighbourInFlight)
	tick := time.NewTicker(time.Second / neighbourRate)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ended:
			return nil
		}
		select {
		case places <- struct{}{}:
			calls.Go(func() {
				write(ask(client, requests[i%len(requests)], order.Deadline))
				<-places
			})
		default:
			write(call{time.Now(), order.Deadline, codes.DeadlineExceeded, "too many calls wait"})
		}
	}
}

// ask makes a call, which ends by its deadline.
func ask(client pb.RateLimitServiceClient, r *pb.RateLimitRequest, deadline time.Duration) call {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	c := call{Sent: time.Now()}
	answer, err := client.ShouldRateLimit(ctx, r)
	c.Took, c.Code = time.Since(c.Sent), status.Code(err)
	switch {
	case err != nil:
		c.Problem = err.Error()
	case answer.GetOverallCode() != pb.RateLimitResponse_OK:
		c.Code, c.Problem = codes.Unknown, fmt.Sprintf("answered %v", answer.GetOverallCode())
	}
	return c
}

func (n *neighbour) add(c call) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, c)
	if c.Problem != "" && n.first == "" {
		n.first = c.Problem
	}
}

// end stops, and waits for what is under way.
func (n *neighbour) end() {
	_ = n.stdin.Close() // An earlier end may have closed it.
	<-n.done
}

// quality is how calls of some time went.
type quality struct {
	calls, failed int
	hung          int // had no answer by the deadline
	p99, longest  time.Duration
}

// between judges the calls that were sent in that time and have ended.
func (n *neighbour) between(from, to time.Time) (q quality) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var took []time.Duration
	for _, c := range n.calls {
		if c.Sent.Before(from) || !c.Sent.Before(to) {
			continue
		}
		q.calls++
		if c.Code != codes.OK {
			q.failed++
		}
		if c.Code == codes.DeadlineExceeded {
			q.hung++
		}
		took = append(took, c.Took)
	}
	if len(took) > 0 {
		slices.Sort(took)
		q.p99, q.longest = took[len(took)*99/100], took[len(took)-1]
	}
	return q
}

// problem is the first error there was.
func (n *neighbour) problem() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.first
}
