//go:build linux

package siege

import (
	"context"
	"fmt"
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

// call is one of the neighbour's.
type call struct {
	sent time.Time
	took time.Duration
	code codes.Code
}

// neighbour is a client that does nothing wrong: an even pace of small calls over a
// connection of its own.
type neighbour struct {
	client   pb.RateLimitServiceClient
	deadline time.Duration // of a call
	stop     context.CancelFunc
	done     chan struct{} // closed when the last call has ended

	mu    sync.Mutex // guards what follows
	calls []call
	first string // error
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

func dial(t *testing.T, addr string) pb.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewRateLimitServiceClient(conn)
}

// startNeighbour begins calls of a key.
func startNeighbour(t *testing.T, addr, key string, deadline time.Duration) *neighbour {
	t.Helper()
	client := dial(t, addr)
	ctx, stop := context.WithCancel(context.Background())
	n := &neighbour{client: client, deadline: deadline, stop: stop, done: make(chan struct{})}
	t.Cleanup(n.end)
	var requests []*pb.RateLimitRequest
	for i := range 50 {
		requests = append(requests, request([2]string{key, fmt.Sprintf("n%d", i)}))
	}
	go func() {
		defer close(n.done)
		var calls sync.WaitGroup
		defer calls.Wait()
		places := make(chan struct{}, neighbourInFlight)
		tick := time.NewTicker(time.Second / neighbourRate)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			select {
			case places <- struct{}{}:
				calls.Go(func() {
					n.call(client, requests[i%len(requests)])
					<-places
				})
			default:
				n.add(call{sent: time.Now(), took: n.deadline, code: codes.DeadlineExceeded}, "too many calls wait")
			}
		}
	}()
	return n
}

func (n *neighbour) call(client pb.RateLimitServiceClient, r *pb.RateLimitRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), n.deadline) // what has begun ends
	defer cancel()
	c := call{sent: time.Now()}
	answer, err := client.ShouldRateLimit(ctx, r)
	c.took, c.code = time.Since(c.sent), status.Code(err)
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case answer.GetOverallCode() != pb.RateLimitResponse_OK:
		c.code, problem = codes.Unknown, fmt.Sprintf("answered %v", answer.GetOverallCode())
	}
	n.add(c, problem)
}

func (n *neighbour) add(c call, problem string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, c)
	if problem != "" && n.first == "" {
		n.first = problem
	}
}

// end stops, and waits for what is under way.
func (n *neighbour) end() {
	n.stop()
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
		if c.sent.Before(from) || !c.sent.Before(to) {
			continue
		}
		q.calls++
		if c.code != codes.OK {
			q.failed++
		}
		if c.code == codes.DeadlineExceeded {
			q.hung++
		}
		took = append(took, c.took)
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
