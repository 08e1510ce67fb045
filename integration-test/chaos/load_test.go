package chaos

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// perKey is calls a second for each counter: twice what its limit lets through. Of the
	// calendar's counters, and of callers with holds, there are half as many.
	perKey = 2 * limit * int(time.Second) / int(period)
	// inFlight bounds the calls under way. Further ones are not made: callers
	// that wait without bound would measure their own queue.
	inFlight = 512
)

// outcome is what became of a call.
type outcome uint8

const (
	passed outcome = iota
	over
	unavailable
	late    // no answer by the deadline
	unheard // something that the service never says
	outcomes

	unmade = outcomes // too many were under way
)

var outcomeNames = [outcomes]string{"OK", "OVER", "ERROR", "LATE", "UNHEARD"}

func (o outcome) String() string { return outcomeNames[o] }

// call is one of them.
type call struct {
	key       int // of load.keys
	hold      holdCall
	sent      time.Time
	took      time.Duration
	what      outcome
	locally   bool // decided without the store
	complaint string
}

func (c call) answered() time.Time { return c.sent.Add(c.took) }

// normal tells whether the store decided.
func (c call) normal() bool { return (c.what == passed || c.what == over) && !c.locally }

// key is one counter.
type key struct {
	rule    rule
	value   string
	request *rlsv3.RateLimitRequest
}

// keysOf are new counters: those of a calendar outlast a trial, and the next one has the
// same store.
func keysOf(rules []rule) (keys []key) {
	prefix := "v" + strconv.FormatInt(time.Now().UnixMilli()%(36*36*36*36*36), 36) + "-"
	for _, r := range rules {
		for _, value := range values(r, prefix) {
			keys = append(keys, key{rule: r, value: value, request: &rlsv3.RateLimitRequest{
				Domain: r.domain,
				Descriptors: []*commonv3.RateLimitDescriptor{
					{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: r.name, Value: value}}},
				},
			}})
		}
	}
	return keys
}

// turnsOf are the keys in the order in which they are asked for, again and again.
func turnsOf(keys []key) (turns []int) {
	for round := range 2 {
		for i, k := range keys {
			if round == 0 || !k.rule.kind.isHeld() && k.rule.kind != calendar {
				turns = append(turns, i)
			}
		}
	}
	return turns
}

// load is calls at an even pace, whatever becomes of them.
type load struct {
	keys     []key
	stub     rlsv3.RateLimitServiceClient
	places   chan struct{} // one for each call under way
	deadline time.Duration // of a call
	stop     context.CancelFunc
	done     chan struct{} // closed when the last call has ended

	mu    sync.Mutex // guards what follows
	calls []call
	shed  int // not made, since too many were under way
}

// dial is a way to the service.
func dial(t *testing.T, addr string) rlsv3.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return rlsv3.NewRateLimitServiceClient(conn)
}

// drive begins calls to stub, all keys in turn.
func drive(t *testing.T, stub rlsv3.RateLimitServiceClient, keys []key, deadline time.Duration) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{
		keys: keys, stub: stub, places: make(chan struct{}, inFlight), deadline: deadline, stop: stop,
		done: make(chan struct{}),
	}
	t.Cleanup(l.end)
	go func() {
		defer close(l.done)
		var callers sync.WaitGroup
		defer callers.Wait()
		turns := turnsOf(keys)
		rate := perKey / 2 * len(turns)
		begun, n := time.Now(), 0
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
			due := int(time.Since(begun).Seconds() * float64(rate))
			for n = max(n, due-rate/10); n < due; n++ { // after a pause, not all at once
				k, turn := turns[n%len(turns)], n
				if keys[k].rule.kind.isHeld() {
					callers.Go(func() { l.holdFor(ctx, k, turn) })
				} else if l.mayCall() {
					callers.Go(func() { l.call(k, holdCall{}) })
				}
			}
		}
	}()
	return l
}

// mayCall takes a place for a call, if there is one.
func (l *load) mayCall() bool {
	select {
	case l.places <- struct{}{}:
		return true
	default:
		l.mu.Lock()
		l.shed++
		l.mu.Unlock()
		return false
	}
}

// call makes a call, for which mayCall has taken a place.
func (l *load) call(k int, h holdCall) outcome {
	defer func() { <-l.places }()
	ctx, cancel := context.WithTimeout(context.Background(), l.deadline) // what has begun ends
	defer cancel()
	c := call{key: k, hold: h, sent: time.Now()}
	answer, err := l.stub.ShouldRateLimit(ctx, h.request(l.keys[k].request))
	c.took = time.Since(c.sent)
	switch code := status.Code(err); {
	case code == codes.OK && answer.GetOverallCode() == rlsv3.RateLimitResponse_OK:
		c.what = passed
	case code == codes.OK && answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT:
		c.what = over
	case code == codes.Unavailable, code == codes.ResourceExhausted: // The store is too slow for the request.
		c.what, c.complaint = unavailable, err.Error()
	case code == codes.DeadlineExceeded:
		c.what, c.complaint = late, err.Error()
	default:
		c.what, c.complaint = unheard, status.Convert(err).String()
	}
	c.locally = decidedLocally(answer)
	l.mu.Lock()
	l.calls = append(l.calls, c)
	l.mu.Unlock()
	return c.what
}

// end stops, and waits for what is under way.
func (l *load) end() {
	l.stop()
	<-l.done
}

// between are the calls sent in that time, and answered by now.
func (l *load) between(from, to time.Time) (list []call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if !c.sent.Before(from) && c.sent.Before(to) {
			list = append(list, c)
		}
	}
	return list
}

// decidedLocally tells whether the store had no part in an answer.
func decidedLocally(answer *rlsv3.RateLimitResponse) bool {
	for _, h := range answer.GetResponseHeadersToAdd() {
		if h.GetKey() == degradedHeader {
			return true
		}
	}
	return false
}
