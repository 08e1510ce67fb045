package service

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/tlsconn"
	"ratelimit/src/service/ports"
)

// servers are the servers of all ports.
type servers struct {
	*foundation
	ports *portSet
	early context.Context // ends when requests to /json no longer wait for the first rules.
	// releaseEarly ends early. Later calls do nothing.
	releaseEarly context.CancelFunc

	// stop servers of callers; running requests may finish until the context ends
	shutdowns      []func(context.Context) error
	operatorCloses []func() error // close the ports for operators
}

func newServers(f *foundation, ports *portSet) *servers {
	s := &servers{foundation: f, ports: ports}
	s.early, s.releaseEarly = context.WithCancel(context.Background())
	return s
}

// earlyRequestPatience is how long after the start requests to /json wait for the first rules at most. It is less than
// decisionTimeout.
const earlyRequestPatience = 5 * time.Second

// answerInTime bounds a decision of h by decisionTimeout, so that the answer is written before bodyTimeout ends the
// connection.
func answerInTime(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), decisionTimeout)
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// holdEarly makes requests to h wait for the first rules. The HTTP port is open before, because probes use it.
func (s *servers) holdEarly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.early.Done():
			h.ServeHTTP(w, r)
		case <-r.Context().Done(): // The caller has gone.
		}
	})
}

// admitCallers opens the ports that await rules and lets early requests through. Requests can be decided from now on.
func (s *servers) admitCallers() error {
	opened, err := s.ports.OpenForCallers()
	for _, p := range opened {
		s.logListening(p.Name, p.Addr())
	}
	s.releaseEarly()
	return err
}

// closedPortsNote is the end of a message about missing rules. It says what they mean for callers.
func (f *foundation) closedPortsNote() string {
	if f.Settings.ForceStartWithoutConfig {
		return ""
	}
	return " and the ports of callers stay closed"
}

// onShutdown has stop call what stops a server of callers.
func (s *servers) onShutdown(stop func(context.Context)) {
	s.shutdowns = append(s.shutdowns, func(ctx context.Context) error { stop(ctx); return nil })
}

// stop stops all servers, those for operators when running requests have finished.
func (s *servers) stop(ctx context.Context) error {
	var g errgroup.Group
	for _, drain := range s.shutdowns {
		g.Go(func() error { return drain(ctx) })
	}
	err := g.Wait()
	for _, end := range s.operatorCloses {
		err = errors.Join(err, end())
	}
	return err
}

// These timeouts and sizes bound what HTTP callers can make the process hold: silent connections,
// endless headers, replies that they do not read.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	headerBytes   = 64 << 10

	// decisionTimeout bounds a request to /json, from the end of its headers, as a caller's deadline bounds one over gRPC.
	decisionTimeout = bodyTimeout - 2*time.Second
)

// serveHTTP adds a server of h on p if p is open.
func (s *servers) serveHTTP(p *ports.Port, h http.Handler) {
	if p.Listener == nil {
		return
	}
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          httpLog(s.log.Logger),
	}
	connlimit.TrackHTTPServer(srv)
	s.run(func(context.Context) error {
		l := p.Listener
		if p.TLSConfig != nil {
			l = tlsListener{l, p.TLSConfig}
		}
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	if p != s.ports.HTTP {
		s.operatorCloses = append(s.operatorCloses, srv.Close)
		return
	}
	s.shutdowns = append(s.shutdowns, func(ctx context.Context) error {
		if srv.Shutdown(ctx) != nil {
			return srv.Close()
		}
		return nil
	})
}

// tlsListener serves TLS on the connections of the embedded Listener, which come from a connlimit.Listener.
type tlsListener struct {
	net.Listener
	cfg *tls.Config
}

// Accept returns the next connection. net/http does its handshake.
func (l tlsListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tlsconn.Server(raw, l.cfg, raw.(*connlimit.Conn)), nil
}

// httpLog logs the messages of net/http about broken connections at debug level, since any client can cause them.
func httpLog(l *logrus.Logger) *log.Logger { return log.New(debugWriter{l}, "", 0) }

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(p)))
	return len(p), nil
}
