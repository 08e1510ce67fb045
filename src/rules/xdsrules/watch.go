package xdsrules

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
)

// Config configures a Watcher.
type Config struct {
	// Server is the management server in gRPC's notation: host:port, dns:///host:port, unix:///path.
	Server string
	// NodeID and NodeMetadata identify this node to the server.
	NodeID       string
	NodeMetadata map[string]string
	// Headers are sent with each stream.
	Headers map[string]string
	// TLS, if not nil, is called for each new connection, so that certificates may change. Nil is plain text.
	TLS func() (*tls.Config, error)
	// MaxMessage is the size of the largest response in bytes. Defaults to 4 MiB.
	MaxMessage int
	// Pauses are the back-off between attempts to reach the server.
	Pauses Pauses
	// Options are what the rules are compiled with.
	Options rules.Options
	// AllOrNothing refuses all of a response that has a bad resource. Otherwise resources that share no domain with a bad one
	// take effect, also from the first response on, and the others stay as they were.
	AllOrNothing bool
	// OnUpdate is called in Run's goroutine with each response, unless version and content are those of the last one.
	OnUpdate func(reload.Result)
	// OnConnect, if not nil, is called in Run's goroutine when a stream opens.
	OnConnect func()
	// OnTrouble, if not nil, is called in Run's goroutine when no stream could be opened or the stream ended, with the reason and
	// the time until the next attempt.
	OnTrouble func(reason error, pause time.Duration)
	// OnSilence, if not nil, is called in Run's goroutine, once, if there is a stream and the server has never sent anything for
	// 10s.
	OnSilence func()
}

// Stats are figures since New.
type Stats struct {
	Connected bool
	Streams   int64 // opened
	Failures  int64 // failed attempts and lost streams
	Acks      int64
	Nacks     int64 // repeated refusals of one response included
}

// Watcher loads the rules that a management server sends.
type Watcher struct {
	cfg         Config
	node        *corev3.Node
	reloadAsked reload.Signal
	dial        []grpc.DialOption // for tests
	secrets     *strings.Replacer // hides the values of Headers

	connected                      atomic.Bool
	streams, failures, acks, nacks atomic.Int64

	// Run owns what follows.
	loader      reload.Loader
	last        *verdict  // on the last response; nil: none, or Reload was called
	loaded      time.Time // when the last response was handled; zero: there was none
	silenceTold bool      // OnSilence was called
}

// verdict is the result of loading a response.
type verdict struct {
	version string
	sum     [sha256.Size]byte
	reason  string // why the response was refused; "" if it was accepted
	repeats int    // how often it came again after it was refused
}

const (
	// loadEvery is the least time between two responses that are loaded. Of those in between, the last one counts.
	loadEvery = 100 * time.Millisecond
	// silenceAfter is the time without any response after which OnSilence is called.
	silenceAfter = 10 * time.Second
	// refuseFirst is the pause before the same response is refused again; it doubles up to refuseMax.
	refuseFirst, refuseMax = 100 * time.Millisecond, 5 * time.Second
)

// New returns a Watcher, which does nothing before Run.
func New(cfg Config) (*Watcher, error) {
	cfg.MaxMessage = cmp.Or(max(cfg.MaxMessage, 0), 4<<20)
	cfg.Pauses = cfg.Pauses.withDefaults()
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
	return &Watcher{
		cfg:         cfg,
		node:        node,
		reloadAsked: reload.NewSignal(),
		secrets:     secretsOf(cfg.Headers),
		loader: reload.Loader{
			AllOrNothing: cfg.AllOrNothing,
			FirstInPart:  true,
			Compile: func(parts []reload.Part) (*rules.Set, rules.Problems, error) {
				return compile(parts, cfg.Options)
			},
			Identify: identify,
		},
	}, conn.Close()
}

// Reload makes Run close its stream, or end its pause, and fetch the rules over a new connection. It never blocks. Calls that
// come before Run handles the first count as one.
func (w *Watcher) Reload() { w.reloadAsked.Send() }

// Stats may be called at any time.
func (w *Watcher) Stats() Stats {
	return Stats{w.connected.Load(), w.streams.Load(), w.failures.Load(), w.acks.Load(), w.nacks.Load()}
}

// Run keeps a stream to the server and loads what it sends. It returns nil when ctx ends, and is called once.
func (w *Watcher) Run(ctx context.Context) error {
	failures := 0
	for {
		lasted, reason := w.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(reason, errReload) {
			failures, w.last = 0, nil
			continue
		}
		w.failures.Add(1)
		if lasted >= w.cfg.Pauses.Initial {
			failures = 0
		}
		failures++
		pause := w.cfg.Pauses.next(failures)
		if w.cfg.OnTrouble != nil {
			w.cfg.OnTrouble(reason, pause)
		}
		select {
		case <-ctx.Done():
		case <-w.reloadAsked:
			w.last = nil
		case <-time.After(pause):
		}
	}
}

// session makes one connection and one stream. It returns when they end, with the trouble or errReload, and with how long the
// stream lasted.
func (w *Watcher) session(ctx context.Context) (lasted time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := w.connect()
	if err != nil {
		return 0, w.trouble(ctx, err)
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed already
	s, err := w.openStream(ctx, cancel, conn)
	if err != nil {
		return 0, w.trouble(ctx, err)
	}
	opened := time.Now()
	w.streams.Add(1)
	w.connected.Store(true)
	if w.cfg.OnConnect != nil {
		w.cfg.OnConnect()
	}
	if err = w.serve(ctx, s); !errors.Is(err, errReload) {
		err = w.trouble(ctx, err)
	}
	w.connected.Store(false)
	lasted = time.Since(opened)
	cancel(nil)
	for range s.responses { // until receive returns
	}
	return lasted, err
}

// serve loads and answers responses until the stream ends or Reload is called.
func (w *Watcher) serve(ctx context.Context, s *adsStream) error {
	var responses <-chan *discovery.DiscoveryResponse // nil until next fires
	next := time.After(loadEvery - time.Since(w.loaded))
	silence := time.After(silenceAfter)
	var again <-chan time.Time // fires when the last response is to be refused again
	var last *discovery.DiscoveryResponse
	var reason string
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.reloadAsked:
			return errReload
		case <-silence:
			if w.loaded.IsZero() && !w.silenceTold && w.cfg.OnSilence != nil {
				w.silenceTold = true
				w.cfg.OnSilence()
			}
		case <-next:
			responses = s.responses
		case r, open := <-responses:
			if !open {
				return s.err
			}
			var repeats int
			reason, repeats = w.load(r)
			last, again, w.loaded = r, nil, time.Now()
			responses, next = nil, time.After(loadEvery)
			if repeats > 0 {
				again = time.After(refusePause(repeats))
			} else {
				w.answer(s, last, reason)
			}
		case <-again:
			w.answer(s, last, reason)
		}
	}
}

func (w *Watcher) answer(s *adsStream, r *discovery.DiscoveryResponse, reason string) {
	if reason == "" {
		w.acks.Add(1)
	} else {
		w.nacks.Add(1)
	}
	s.answer(r, reason)
}

// refusePause returns the pause before a response is refused that has come again so many times.
func refusePause(repeats int) time.Duration {
	return min(refuseFirst<<min(repeats-1, 10), refuseMax)
}

// load loads a response, unless it repeats the last one. It returns why the response is refused, "" if it is accepted, and how
// often it came again after it was refused.
func (w *Watcher) load(r *discovery.DiscoveryResponse) (reason string, repeats int) {
	parts := partsOf(r.GetResources())
	typeURL := cmp.Or(r.GetTypeUrl(), TypeURL)
	v := &verdict{version: r.GetVersionInfo(), sum: reload.Sum(append(slices.Clone(parts), reload.Part{Type: typeURL}))}
	out := reload.Result{Parts: len(parts), Version: short(r.GetVersionInfo()), Hash: hex.EncodeToString(v.sum[:8]), At: time.Now()}
	switch {
	case typeURL != TypeURL:
		var wrong reader
		wrong.problem("xds response", "send "+TypeURL, "its type is %q", short(typeURL))
		out.Err = wrong.problems
	case !isHeartbeat(parts):
	case w.last == nil:
		return "xds response: a heartbeat of resources that were never sent; send them whole", 0
	default:
		return w.last.repeat()
	}
	if w.last != nil && w.last.version == v.version && w.last.sum == v.sum {
		return w.last.repeat()
	}
	if out.Err == nil {
		w.loader.Load(parts, nil, &out)
	}
	if out.Err != nil {
		v.reason = out.Err.Error()
		if out.Set != nil {
			v.reason = "refused in part, other domains took effect: " + v.reason
		}
		v.reason = cut(v.reason)
	}
	w.last = v
	if w.cfg.OnUpdate != nil {
		w.cfg.OnUpdate(out)
	}
	return v.reason, 0
}

// repeat returns the verdict on the same response. It counts refusals only.
func (v *verdict) repeat() (reason string, repeats int) {
	if v.reason != "" {
		v.repeats++
	}
	return v.reason, v.repeats
}
