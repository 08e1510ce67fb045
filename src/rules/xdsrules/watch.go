package xdsrules

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/rules/reload"
)

// Config configures a Watcher.
type Config struct {
	reload.Config // Even the first response may take effect in part.

	// Server is the management server in gRPC's notation: host:port, dns:///host:port, unix:///path.
	Server string
	// Delta selects delta xDS, in which a response has only what changed. Otherwise each response has all resources.
	Delta bool
	// NodeID and NodeMetadata identify this node to the server.
	NodeID       string
	NodeMetadata map[string]string
	// Headers, if not nil, returns what is sent with a new stream, so that tokens may change.
	Headers func() (map[string]string, error)
	// TLS, if not nil, is called for each new connection, so that certificates may change. Nil is plain text.
	TLS func() (*tls.Config, error)
	// MaxMessageBytes is the size of the largest response in bytes. Defaults to 4 MiB.
	MaxMessageBytes int
	// Pauses are the back-off between attempts to reach the server. Required.
	Pauses Pauses
	// OnConnect is called when a stream opens. All callbacks are required, and are called in Run's goroutine. OnLoad is
	// not called for a response whose version and content are those of the last one.
	OnConnect func()
	// OnTrouble is called when no stream could be opened or the stream ended, with the reason and the time until the next
	// attempt.
	OnTrouble func(reason error, pause time.Duration)
	// OnSilence is called once, if there is a stream and the server has never sent anything for 10s.
	OnSilence func()
}

// Stats are figures of a Watcher since New.
type Stats struct {
	Connected atomic.Int64 // 1 while there is a stream, otherwise 0
	Streams   atomic.Int64 // those that were opened
	Failures  atomic.Int64 // failed attempts to connect, and lost streams
	Acks      atomic.Int64
	Nacks     atomic.Int64 // a response counts each time it is refused
}

// Watcher loads the rules that a management server sends.
type Watcher struct {
	cfg          Config
	nodeIdentity *corev3.Node
	reloadSignal reload.Signal     // sent by Reload
	dialOptions  []grpc.DialOption // only tests set them
	stats        Stats

	// Only Run's goroutine uses the following fields.
	loader          reload.Loader
	last            verdict
	lastLoadTime    time.Time         // zero until a response is loaded
	resources       resources         // those that the server has sent over delta xDS
	secretHider     *strings.Replacer // hides the values of the headers of the last stream
	silenceReported bool
}

// verdict is the result of the last load.
type verdict struct {
	loadedHash  string // that of what was loaded
	mustLoad    bool   // set if the next response is loaded even if it changes nothing
	refusal     string // why it was refused, in whole or in part; empty if it was accepted
	repeatCount int    // how often in a row a response repeated only what was refused
}

const (
	// minLoadInterval is the least time between two responses that are loaded. Of those in between, the last one counts.
	minLoadInterval = 100 * time.Millisecond
	// silenceAfter is the time without any response after which OnSilence is called.
	silenceAfter = 10 * time.Second
	// firstRefusalPause is the pause before the same response is refused again. It doubles up to maxRefusalPause.
	firstRefusalPause, maxRefusalPause = 100 * time.Millisecond, 5 * time.Second
)

// New returns a Watcher, which does nothing before Run.
func New(cfg Config) (*Watcher, error) {
	cfg.MaxMessageBytes = cmp.Or(max(cfg.MaxMessageBytes, 0), 4<<20)
	if cfg.Server == "" {
		return nil, errors.New("xdsrules: no server is named")
	}
	// gRPC checks the name of the server without connecting to it.
	conn, err := grpc.NewClient(cfg.Server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("xdsrules: server %q: %w", cfg.Server, err)
	}
	node := &corev3.Node{Id: cfg.NodeID}
	if len(cfg.NodeMetadata) > 0 {
		node.Metadata = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
		for key, value := range cfg.NodeMetadata {
			node.Metadata.Fields[key] = structpb.NewStringValue(value)
		}
	}
	w := &Watcher{
		cfg:          cfg,
		nodeIdentity: node,
		reloadSignal: reload.NewSignal(),
		secretHider:  secretsOf(nil),
		loader:       reload.Loader{Config: cfg.Config, Format: format, AllowPartialFirstLoad: true},
	}
	w.forgetVersions()
	return w, conn.Close()
}

// Reload makes Run close its stream, or end its pause, and fetch the rules over a new connection. It never blocks.
// Calls that come before Run handles the first count as one.
func (w *Watcher) Reload() { w.reloadSignal.Send() }

// Stats returns the figures. The Watcher goes on counting in them.
func (w *Watcher) Stats() *Stats { return &w.stats }

// Run keeps a stream to the server and loads what it sends. It returns nil when ctx ends, and is called once.
func (w *Watcher) Run(ctx context.Context) error {
	failures := 0
	for {
		lasted, err := w.runStream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errReloadRequested) {
			failures = 0
			w.forgetVersions()
			continue
		}
		w.stats.Failures.Add(1)
		if lasted >= w.cfg.Pauses.Initial {
			failures = 0
		}
		failures++
		pause := w.cfg.Pauses.pauseAfter(failures, rand.Float64())
		w.cfg.OnTrouble(w.troubleError(err), pause)
		select {
		case <-ctx.Done():
		case <-w.reloadSignal:
			w.forgetVersions()
		case <-time.After(pause):
		}
	}
}

// forgetVersions makes the next response count as new, and the next stream ask for all resources.
func (w *Watcher) forgetVersions() { w.last.mustLoad, w.resources.wantsAll = true, true }

// runStream makes one connection and one stream. It returns when they end, with the reason and with how long the stream
// lasted.
func (w *Watcher) runStream(ctx context.Context) (lasted time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := w.connect()
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	s, err := w.openStream(ctx, cancel, conn)
	if err != nil {
		return 0, err
	}
	opened := time.Now()
	w.stats.Streams.Add(1)
	w.stats.Connected.Store(1)
	w.cfg.OnConnect()
	err = w.serveStream(ctx, s)
	err = cmp.Or(context.Cause(ctx), err)
	w.stats.Connected.Store(0)
	lasted = time.Since(opened)
	cancel(nil)
	for range s.responses { // This waits until receiveResponses returns.
	}
	return lasted, err
}

// serveStream loads and answers responses until the stream ends or Reload is called.
func (w *Watcher) serveStream(ctx context.Context, s *adsStream) error {
	var responses <-chan serverResponse // nil until mayLoad fires, so that responses wait.
	mayLoad := time.After(minLoadInterval - time.Since(w.lastLoadTime))
	silence := time.After(silenceAfter)
	var answerDue <-chan time.Time // fires when unanswered are to be answered
	var unanswered []loadedResponse
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.reloadSignal:
			return errReloadRequested
		case <-silence:
			if w.lastLoadTime.IsZero() && !w.silenceReported {
				w.silenceReported = true
				w.cfg.OnSilence()
			}
		case <-mayLoad:
			responses = s.responses
		case r, open := <-responses:
			if !open {
				return s.endError
			}
			if !w.cfg.Delta {
				unanswered = nil // In state of the world an answer to the newest response is enough.
			}
			loaded, repeats := w.loadFrom(r, s.responses)
			unanswered = append(unanswered, loaded...)
			answerDue = time.After(refusalPause(repeats))
			w.lastLoadTime = time.Now()
			responses, mayLoad = nil, time.After(minLoadInterval)
		case <-answerDue:
			for _, l := range unanswered {
				w.answerResponse(s, l.response, l.refusal)
			}
			unanswered = nil
		}
	}
}

// loadedResponse is a response that was loaded. refusal says why it is refused; it is empty if the response is
// accepted.
type loadedResponse struct {
	response serverResponse
	refusal  string
}

// loadFrom loads first and, with delta xDS, the responses that can be received from more without waiting. repeats is
// how often refused resources came again without any change.
func (w *Watcher) loadFrom(first serverResponse, more <-chan serverResponse) (loaded []loadedResponse, repeats int) {
	if r, ok := first.(*discovery.DiscoveryResponse); ok {
		refusal, repeats := w.loadResponse(r)
		return []loadedResponse{{r, refusal}}, repeats
	}
	return w.loadDeltas(waitingDeltas(first, more))
}

// refusalPause returns the pause before a response is answered that has come again so many times after it was refused.
func refusalPause(repeats int) time.Duration {
	if repeats == 0 {
		return 0
	}
	return min(firstRefusalPause<<min(repeats-1, 10), maxRefusalPause)
}

// loadResponse loads a response, unless it repeats the last one. It returns why the response is refused, or "" if it is
// accepted, and how often it came again after it was refused.
func (w *Watcher) loadResponse(r *discovery.DiscoveryResponse) (refusal string, repeats int) {
	parts := partsOf(r.GetResources())
	typeURL := cmp.Or(r.GetTypeUrl(), TypeURL)
	contentsHash := reload.HashOfParts(append(slices.Clone(parts), reload.Part{Name: typeURL}))
	hash := contentsHash + r.GetVersionInfo()
	heartbeat := typeURL == TypeURL && isHeartbeat(parts)
	switch {
	case heartbeat && w.last.mustLoad:
		return "xds response: a heartbeat of resources that were never sent; send them whole", 0
	case heartbeat, hash == w.last.loadedHash && !w.last.mustLoad:
		if w.last.refusal != "" {
			w.last.repeatCount++
		}
		return w.last.refusal, w.last.repeatCount
	}
	out := w.load(r.GetVersionInfo(), func(out *reload.Result) {
		if typeURL == TypeURL {
			w.loader.Load(parts, nil, out)
		} else {
			out.PartCount, out.Hash, out.Err = len(parts), contentsHash[:16], wrongType("xds response", typeURL)
		}
	})
	w.last = verdict{loadedHash: hash, refusal: refusalText(out)}
	return w.last.refusal, 0
}

// load calls OnLoad with the result of a load, of which compile sets all but the version and the time.
func (w *Watcher) load(version string, compile func(*reload.Result)) reload.Result {
	defer w.cfg.BeginLoad()()
	out := reload.Result{Version: shortName(version), ReadTime: time.Now()}
	compile(&out)
	w.cfg.OnLoad(out)
	return out
}

// Pauses are the back-off between attempts to reach the server.
type Pauses struct {
	// First is the pause after a good connection was lost, or the first attempt failed.
	First time.Duration
	// Initial is the second pause; each further one is Growth times as long, up to Max. Growth is 1 or more.
	Initial time.Duration
	Growth  float64
	Max     time.Duration
	// Jitter is the random share of a pause, 0 to 1, so that replicas do not reconnect at the same time: with 0.5, 10s
	// become 5s to 10s.
	Jitter float64
}

// pauseAfter returns the pause after so many failures in a row, 1 or more. random is a random number from 0 to 1.
func (p Pauses) pauseAfter(failures int, random float64) time.Duration {
	pause := float64(p.First)
	if failures > 1 {
		pause = float64(p.Initial) * math.Pow(p.Growth, float64(failures-2))
	}
	pause = min(pause, float64(p.Max)) // The power may be infinite.
	return time.Duration(pause * (1 - p.Jitter*random))
}
