package xdsrules

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/testbed/xdstest"
)

// script is a management server that calls do for each stream.
type script struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	do func(stream) error
}

type stream = discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer

func (s *script) StreamAggregatedResources(st stream) error { return s.do(st) }

// play starts such a server.
func (l *lab) play(do func(stream) error) (stop func()) {
	return xdstest.Serve(l.t, l.listen(), &script{do: do})
}

// response returns a response with these domains.
func response(t testing.TB, version, nonce string, domains ...*configv3.RateLimitConfig) *discovery.DiscoveryResponse {
	r := &discovery.DiscoveryResponse{TypeUrl: TypeURL, VersionInfo: version, Nonce: nonce}
	for _, d := range domains {
		r.Resources = append(r.Resources, anyOf(t, d))
	}
	return r
}

// answers reads n requests, of which it returns the last.
func answers(st stream, n int) (*discovery.DiscoveryRequest, error) {
	var req *discovery.DiscoveryRequest
	var err error
	for range n {
		if req, err = st.Recv(); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// forever waits for the end of the stream.
func forever(st stream) error {
	<-st.Context().Done()
	return nil
}

const dialFailed = `xds server passthrough:///xds: connection error: desc = "transport: Error while dialing: connection refused"; is CONFIG_GRPC_XDS_SERVER_URL right, and does the server run?: pause `

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNobodyThere(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		l.after(40*time.Second, dialFailed+"1s", dialFailed+"4s", dialFailed+"8s", dialFailed+"16s", dialFailed+"16s")
		want := []time.Duration{0, 1, 5, 13, 29}
		for i, at := range l.dialled() {
			if at.Round(time.Second) != want[i]*time.Second {
				t.Errorf("attempt %d at %v", i+1, at)
			}
		}
		if st := l.Stats(); st.Failures.Load() != 5 || st.Streams.Load() != 0 {
			t.Errorf("got %+v", st)
		}
	})
}

// A server that accepts the stream, and never sends anything.
func TestSilence(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		l.play(forever)
		l.after(9*time.Second, "connected")
		l.after(2*time.Second, "silence")
		l.after(time.Hour) // it may have nothing to say
		l.Reload()
		l.after(time.Hour, "connected")
	})
}

// A server that does not speak HTTP/2.
func TestNoPreface(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		listener := l.listen()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
		}()
		t.Cleanup(func() { _ = listener.Close() })
		l.after(20500*time.Millisecond,
			`xds server passthrough:///xds: connection error: desc = "error reading server preface: io: read/write on closed pipe"; is it a gRPC server, and does it want TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS)?: pause 1s`)
	})
}

// A server that ends each stream, also after it sent rules. The rules take effect, and the
// pauses grow.
func TestClosesAtOnce(t *testing.T) {
	const ended = "xds server passthrough:///xds: the server ended the stream: pause "
	inLab(t, nil, func(t *testing.T, l *lab) {
		version := 0
		l.play(func(st stream) error {
			if _, err := st.Recv(); err != nil {
				return err
			}
			version++
			return st.Send(response(t, fmt.Sprint(version), "n", limit("a", uint32(version))))
		})
		l.after(30*time.Second,
			"connected", "v1: a.k=1", ended+"1s",
			"connected", "v2: a.k=2", ended+"4s",
			"connected", "v3: a.k=3", ended+"8s",
			"connected", "v4: a.k=4", ended+"16s",
			"connected", "v5: a.k=5", ended+"16s")
	})
	inLab(t, nil, func(t *testing.T, l *lab) {
		l.play(func(stream) error { return status.Error(codes.Unauthenticated, "who\nare\xff you") })
		l.after(time.Millisecond, "connected",
			"xds server passthrough:///xds: who are� you (Unauthenticated); the server demands authentication: set "+
				"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, or CONFIG_GRPC_XDS_CLIENT_TLS_CERT: pause 1s")
	})
}

// After a connection that lasted the pauses start again with the first.
func TestPausesBeginAnew(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		lasts := []time.Duration{0, 0, 0, 4 * time.Second, 0}
		l.play(func(stream) error {
			time.Sleep(lasts[0])
			lasts = lasts[1:]
			return errors.New("x")
		})
		x := "xds server passthrough:///xds: x (Unknown): pause "
		l.after(17500*time.Millisecond, "connected", x+"1s", "connected", x+"4s", "connected", x+"8s", "connected", x+"1s")
		l.after(time.Second, "connected", x+"4s")
	})
}

// A message that is too large is not read, and costs no rules.
func TestGiantMessage(t *testing.T) {
	inLab(t, func(c *Config) { c.MaxMessageBytes = 1000 }, func(t *testing.T, l *lab) {
		large := limit("a", 2)
		large.Name = strings.Repeat("n", 2000)
		l.play(func(st stream) error {
			if err := st.Send(response(t, "1", "1", limit("a", 1))); err != nil {
				return err
			}
			if _, err := answers(st, 2); err != nil {
				return err
			}
			return errors.Join(st.Send(response(t, "2", "2", large)), forever(st))
		})
		l.after(900*time.Millisecond, "connected", "v1: a.k=1",
			"xds server passthrough:///xds: grpc: received message larger than max (2163 vs. 1000) (ResourceExhausted); raise "+
				"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES: pause 1s")
	})
}

func TestRefused(t *testing.T) {
	const wrongType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	envelope := func(inner *anypb.Any) *anypb.Any { return anyOf(t, &discovery.Resource{Name: "x", Resource: inner}) }
	for _, tt := range []struct {
		name     string
		response *discovery.DiscoveryResponse
		want     string // "" is accepted
	}{
		{
			"a response of another type", &discovery.DiscoveryResponse{TypeUrl: wrongType},
			"xds response: its type is \"" + wrongType + "\"; send " + TypeURL,
		},
		{
			"a type of a megabyte", &discovery.DiscoveryResponse{TypeUrl: strings.Repeat("x", 1<<20)},
			"xds response: its type is \"" + strings.Repeat("x", 60) + "...\"; send " + TypeURL,
		},
		{"no type, and nothing in it", &discovery.DiscoveryResponse{}, ""},
		{
			"an envelope of another type",
			&discovery.DiscoveryResponse{TypeUrl: TypeURL, Resources: []*anypb.Any{envelope(&anypb.Any{TypeUrl: wrongType})}},
			"xds resource 1: its type is \"" + wrongType + "\"; send " + TypeURL,
		},
		{
			"an envelope in an envelope", &discovery.DiscoveryResponse{
				TypeUrl:   TypeURL,
				Resources: []*anypb.Any{envelope(envelope(anyOf(t, limit("a", 1))))},
			},
			"xds resource 1: its type is \"type.googleapis.com/envoy.service.discovery.v3.Resource\"; send " + TypeURL,
		},
		{"an envelope", &discovery.DiscoveryResponse{
			TypeUrl:   TypeURL,
			Resources: []*anypb.Any{envelope(anyOf(t, limit("a", 1)))},
		}, ""},
		{
			"a torn envelope", &discovery.DiscoveryResponse{
				TypeUrl:   TypeURL,
				Resources: []*anypb.Any{{TypeUrl: "x/envoy.service.discovery.v3.Resource", Value: []byte{0x0a}}},
			},
			"xds resource 1: it cannot be read: proto:",
		},
		{
			"a heartbeat of nothing", &discovery.DiscoveryResponse{TypeUrl: TypeURL, Resources: []*anypb.Any{envelope(nil)}},
			"xds response: a heartbeat of resources that were never sent; send them whole",
		},
		{
			"a domain twice", response(t, "1", "", limit("a", 1), &configv3.RateLimitConfig{Name: "b", Domain: "a"}),
			`xds resource "b": domain "a" is already defined at xds resource "a"`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inLab(t, nil, func(t *testing.T, l *lab) {
				answer := make(chan *discovery.DiscoveryRequest, 1)
				l.play(func(st stream) error {
					tt.response.VersionInfo, tt.response.Nonce = "7", "n7"
					if err := st.Send(tt.response); err != nil {
						return err
					}
					req, err := answers(st, 2)
					answer <- req
					return errors.Join(err, forever(st))
				})
				req := <-answer
				got := req.GetErrorDetail().GetMessage()
				if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
					t.Errorf("told the server %q", got)
				}
				if version := map[bool]string{true: "7", false: ""}[tt.want == ""]; req.GetVersionInfo() != version ||
					req.GetResponseNonce() != "n7" {
					t.Errorf("acknowledged version %q, nonce %q", req.GetVersionInfo(), req.GetResponseNonce())
				}
			})
		})
	}
}

// Headers that the server quotes in an error are hidden.
func TestHeadersAreNotTold(t *testing.T) {
	inLab(t, func(c *Config) {
		c.Headers = func() (map[string]string, error) {
			return map[string]string{"authorization": "Bearer s3cr3t-token", "x-also": "s3cr3t", "x-on": "1"}, nil
		}
	}, func(t *testing.T, l *lab) {
		l.play(func(st stream) error {
			return status.Errorf(codes.Unauthenticated, "1: who is s3cr3t-token? Not \"Bearer s3cr3t-token\", nor s3cr3t")
		})
		l.after(500*time.Millisecond, "connected",
			`xds server passthrough:///xds: 1: who is …? Not "…", nor … (Unauthenticated); the server demands authentication: set CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, or CONFIG_GRPC_XDS_CLIENT_TLS_CERT: pause 1s`)
	})
}

// A refusal is one message of bounded size.
func TestReasonIsBounded(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		bad := limit(strings.Repeat("é", 100), 1)
		for range 10_000 {
			bad.Descriptors = append(bad.Descriptors, &configv3.RateLimitDescriptor{Key: "é"})
		}
		var reason string
		l.play(func(st stream) error {
			if err := st.Send(response(t, "1", "1", bad)); err != nil {
				return err
			}
			req, err := answers(st, 2)
			reason = req.GetErrorDetail().GetMessage()
			return errors.Join(err, forever(st))
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if len(reason) < 1000 || len(reason) > 4<<10 {
			t.Errorf("%d bytes: %s", len(reason), reason)
		}
		l.mu.Lock()
		l.journal = nil
		l.mu.Unlock()
	})
}

// Of many responses only the newest is loaded, at most ten times a second.
func TestFlood(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		const n = 5000
		var acked []string
		l.play(func(st stream) error {
			go func() {
				for {
					req, err := st.Recv()
					if err != nil {
						return
					}
					acked = append(acked, req.GetVersionInfo())
				}
			}()
			for i := range n {
				if err := st.Send(response(t, fmt.Sprint(i), fmt.Sprint(i), limit("a", uint32(i)))); err != nil {
					return err
				}
				if i%500 == 0 {
					time.Sleep(10 * time.Millisecond)
				}
			}
			return forever(st)
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := outcomeOf(l.last), fmt.Sprintf("v%d: a.k=%d", n-1, n-1); got != want {
			t.Errorf("in force is %s", got)
		}
		if len(acked) > 5 || acked[len(acked)-1] != fmt.Sprint(n-1) {
			t.Errorf("acknowledged %q", acked)
		}
		l.mu.Lock()
		l.journal = nil
		l.mu.Unlock()
	})
}

// Responses that arrive while another waits for its turn replace it; later ones are loaded as
// usual.
func TestInQuickSuccession(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		l.play(func(st stream) error {
			for i, pause := range []time.Duration{0, 20, 20, 20, 500, 20, 500} { // in ms
				time.Sleep(pause * time.Millisecond)
				if err := st.Send(response(t, fmt.Sprint(i), fmt.Sprint(i), limit("a", uint32(i)))); err != nil {
					return err
				}
			}
			return forever(st)
		})
		l.after(10*time.Second, "connected", "v0: a.k=0", "v3: a.k=3", "v4: a.k=4", "v5: a.k=5", "v6: a.k=6")
		l.Reload() // is heard
		l.after(50*time.Millisecond, "connected", "v0: a.k=0")
	})
}

// A server that answers each acknowledgement with the same response.
func TestEcho(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		requests := 0
		l.play(func(st stream) error {
			for {
				if _, err := st.Recv(); err != nil {
					return err
				}
				requests++
				if err := st.Send(response(t, "1", fmt.Sprint(requests), limit("a", 1))); err != nil {
					return err
				}
			}
		})
		l.after(10*time.Second, "connected", "v1: a.k=1")
		if requests > 110 {
			t.Errorf("%d requests in 10s", requests)
		}
	})
}

// A server that sends and does not read: refusals fill its buffers.
func TestNeverReads(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		l.play(func(st stream) error {
			for i := 0; ; i++ {
				bad := &configv3.RateLimitConfig{Name: fmt.Sprint(i)}
				for range 40 { // each refusal is of 4 KiB
					bad.Descriptors = append(bad.Descriptors, &configv3.RateLimitDescriptor{RateLimit: &configv3.RateLimitPolicy{}})
				}
				if err := st.Send(response(t, fmt.Sprint(i), "n", bad)); err != nil {
					return err
				}
				time.Sleep(200 * time.Millisecond)
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		got := strings.Join(l.journal, "\n")
		l.journal = nil
		if want := "xds server passthrough:///xds: the server has not read what it was sent for 10s: pause 1s"; !strings.Contains(got, want) {
			t.Errorf("not told %q", want)
		}
	})
}

// Pings find a connection that was cut without a signal; until then nothing changes. The server
// tolerates the pings.
func TestHalfOpen(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1", limit("a", 1))
		l.after(24*time.Hour, "connected", "v1: a.k=1") // 279 pings
		l.cut()
		s.Publish(t, "me", "2", limit("a", 2))
		l.after(pingEvery+pingTimeout+5*time.Second,
			"xds server passthrough:///xds: keepalive ping failed to receive ACK within timeout: pause 1s", "connected",
			"v2: a.k=2")
	})
}
