package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxWaiting       = 1000                   // messages that wait, of all addresses
	maxWaitingForOne = 100                    // those of one address
	minPause         = 100 * time.Millisecond // between two messages to an address
	maxRetryAfter    = 30 * time.Second       // the longest pause that a receiver can ask for
	attemptTimeout   = 10 * time.Second       // for one attempt
	hurryTimeout     = 2 * time.Second        // for all attempts after hurry
	maxReplyBytes    = 4 << 10                // read of a reply, so that its connection can be used again
)

// sender posts messages. Each address has a queue of its own, so that one that is slow or dead delays no other.
type sender struct {
	cfg                   *Config
	client                *http.Client
	sent, failed, dropped atomic.Uint64
	workers               sync.WaitGroup
	hurried               chan struct{} // closed by hurry
	ctx                   context.Context
	cancel                context.CancelFunc // ends all attempts

	mu     sync.Mutex
	queues map[string]*queue // by address, those with messages
	total  int               // the messages in all queues
}

// queue has the messages that wait for an address. The first one is being sent.
type queue struct {
	address  *url.URL
	messages []message
}

func newSender(cfg *Config) *sender {
	s := &sender{cfg: cfg, hurried: make(chan struct{}), queues: make(map[string]*queue)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: attemptTimeout / 2}).DialContext,
			TLSHandshakeTimeout: attemptTimeout / 2, MaxResponseHeaderBytes: 16 << 10, DisableCompression: true,
			ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second,
		},
		// A redirect could lead anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       attemptTimeout,
	}
	return s
}

func (s *sender) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// add has a message sent, unless too many wait.
func (s *sender) add(address *url.URL, m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, isNew := s.queues[address.String()], false
	if q == nil {
		q, isNew = &queue{address: address}, true
	}
	if s.total >= maxWaiting || len(q.messages) >= maxWaitingForOne {
		s.dropped.Add(1)
		return
	}
	q.messages, s.total = append(q.messages, m), s.total+1
	if isNew {
		s.queues[address.String()] = q
		s.workers.Go(func() { s.work(q, m) })
	}
}

// next removes the first message of q, and returns the one behind it; not ok if there is none. Then q ends.
func (s *sender) next(q *queue) (m message, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.messages, s.total = q.messages[1:], s.total-1
	if len(q.messages) == 0 {
		delete(s.queues, q.address.String())
		return m, false
	}
	return q.messages[0], true
}

// work sends first and the other messages of q until there are none.
func (s *sender) work(q *queue, first message) {
	for m, ok := first, true; ok; m, ok = s.next(q) {
		if err := s.deliver(q.address, m); err != nil {
			s.fail(q.address.Host, err)
		} else {
			s.sent.Add(1)
		}
		s.pause(minPause)
	}
}

func (s *sender) fail(host string, err error) {
	s.failed.Add(1)
	s.cfg.OnFailure(host, err)
}

// deliver sends a message. It tries again after failures that may pass.
func (s *sender) deliver(address *url.URL, m message) error {
	for attempt := 0; ; attempt++ {
		wait, err := s.post(address, m)
		if err == nil || wait < 0 {
			return err
		}
		if attempt >= len(s.cfg.Pauses) {
			return fmt.Errorf("after %d attempts: %w", attempt+1, err)
		}
		pause := s.cfg.Pauses[attempt]
		pause += rand.N(pause/2 + 1)
		if !s.pause(max(pause, wait)) {
			return fmt.Errorf("the service stops, and after %d attempts: %w", attempt+1, err)
		}
	}
}

// pause waits. It returns false if hurry was called.
func (s *sender) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.hurried:
		return false
	}
}

// post tries once to send a message. wait is how long the receiver wants not to be asked, or negative if trying again
// is of no use.
func (s *sender) post(address *url.URL, m message) (wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, address.String(), bytes.NewReader(m.body))
	if err != nil {
		return -1, errors.New("it is no address of a webhook")
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.cfg.UserAgent)
	req.Header.Set("webhook-id", m.id)
	req.Header.Set("webhook-timestamp", timestamp)
	if len(s.cfg.Keys) > 0 {
		req.Header.Set("webhook-signature", signature(s.cfg.Keys, m.id, timestamp, m.body))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if e := (*url.Error)(nil); errors.As(err, &e) { // Its text has the whole address.
			err = e.Err
		}
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }() // Nothing of it is needed.
	_, _ = io.CopyN(io.Discard, resp.Body, maxReplyBytes)
	switch code := resp.StatusCode; {
	case code < 300:
		return 0, nil
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 if it is a date, or missing
		return min(time.Duration(max(seconds, 0))*time.Second, maxRetryAfter), fmt.Errorf("it answers %d", code)
	default:
		return -1, fmt.Errorf("it answers %d", code)
	}
}

// hurry has each message that waits tried once, without pauses.
func (s *sender) hurry() {
	close(s.hurried)
	time.AfterFunc(hurryTimeout, s.cancel)
}

// finish waits for all messages.
func (s *sender) finish() {
	s.workers.Wait()
	s.cancel()
	s.client.CloseIdleConnections()
}
