package xdsrules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
	"ratelimit/testbed/xdstest"
)

// inDeltaLab runs a test as inLab does, with delta xDS.
func inDeltaLab(t *testing.T, change func(*Config), test func(t *testing.T, l *lab)) {
	inLab(t, func(c *Config) {
		c.Delta = true
		if change != nil {
			change(c)
		}
	}, test)
}

// expectDeltaSaid compares the requests so far: nonce, error, and the names of the initial versions.
func expectDeltaSaid(t *testing.T, s *xdstest.Server, want ...string) {
	t.Helper()
	var got []string
	for _, r := range s.DeltaRequests() {
		got = append(got, deltaRequestText(r))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("the server was told\n%s\nwant\n%s", g, w)
	}
}

func deltaRequestText(r *discovery.DeltaDiscoveryRequest) string {
	text := fmt.Sprintf("nonce %q", r.GetResponseNonce())
	for _, name := range slices.Sorted(maps.Keys(r.GetInitialResourceVersions())) {
		text += " has " + name
		if r.GetInitialResourceVersions()[name] == "" {
			text += "?"
		}
	}
	if r.GetErrorDetail() != nil {
		text += " error " + r.GetErrorDetail().GetMessage()
	}
	return text
}

// noKey is a domain with a mistake.
func noKey(name string) *configv3.RateLimitConfig {
	return &configv3.RateLimitConfig{Name: name, Domain: name, Descriptors: []*configv3.RateLimitDescriptor{{}}}
}

func noKeyProblem(name string) string {
	return fmt.Sprintf("xds resource %q: descriptors[0]: the descriptor has no key, or an empty one; add `key: <name>`",
		name)
}

const inPart = "refused in part, other domains took effect: "

func TestDelta(t *testing.T) {
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1", limit("a", 1), limit("b", 1))
		s.Publish(t, "you", "9", limit("z", 9))
		l.after(time.Second, "connected", "v1: a.k=1 b.k=1")
		s.Publish(t, "me", "2", limit("a", 1), limit("b", 2), limit("c", 2))
		l.after(time.Second, "v2: a.k=1 b.k=2 c.k=2")
		s.Publish(t, "me", "3", limit("b", 2), limit("c", 2))
		l.after(time.Second, "v3: b.k=2 c.k=2")
		s.Publish(t, "me", "4", limit("b", 2), noKey("c"), limit("d", 4))
		l.after(time.Second, "v4: b.k=2 c.k=2 d.k=4 refused: "+noKeyProblem("c"))
		s.Publish(t, "me", "5", limit("b", 5), noKey("c"), limit("d", 4)) // the refused one is not sent again
		l.after(time.Second, "v5: b.k=5 c.k=2 d.k=4 refused: "+noKeyProblem("c"))
		expectDeltaSaid(t, s, `nonce ""`, `nonce "1"`, `nonce "2"`, `nonce "3"`, `nonce "4" error `+inPart+noKeyProblem("c"),
			`nonce "5"`)
		s.Publish(t, "me", "6", limit("b", 5), limit("c", 6), limit("d", 4))
		l.after(time.Second, "v6: b.k=5 c.k=6 d.k=4")
		s.Publish(t, "me", "7")
		l.after(time.Hour, "v7:")
		if st := l.Stats(); st.Acks.Load() != 6 || st.Nacks.Load() != 1 || st.Streams.Load() != 1 {
			t.Errorf("got %d acks, %d nacks, %d streams", st.Acks.Load(), st.Nacks.Load(), st.Streams.Load())
		}
	})
}

// With AllOrNothing nothing changes while one resource is bad, and all changes take effect when it is good.
func TestDeltaAllOrNothing(t *testing.T) {
	inDeltaLab(t, func(c *Config) { c.AllOrNothing = true }, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1", limit("a", 1), limit("b", 1))
		l.after(time.Second, "connected", "v1: a.k=1 b.k=1")
		s.Publish(t, "me", "2", noKey("a"), limit("b", 1))
		l.after(time.Second, "v2: refused: "+noKeyProblem("a"))
		s.Publish(t, "me", "3", noKey("a"), limit("b", 3))
		l.after(time.Second, "v3: refused: "+noKeyProblem("a"))
		s.Publish(t, "me", "4", limit("a", 4), limit("b", 3))
		l.after(time.Second, "v4: a.k=4 b.k=3")
		expectDeltaSaid(t, s, `nonce ""`, `nonce "1"`, `nonce "2" error `+noKeyProblem("a"),
			`nonce "3" error `+noKeyProblem("a"), `nonce "4"`)
	})
}

// A new stream names what is in force, so the server sends the rest, and what is gone.
func TestDeltaReconnects(t *testing.T) {
	const gone = "xds server passthrough:///xds: error reading from server: EOF: pause "
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1", limit("a", 1), limit("b", 1), limit("c", 1))
		l.after(time.Second, "connected", "v1: a.k=1 b.k=1 c.k=1")
		s.Publish(t, "me", "2", limit("a", 1), noKey("b"), limit("c", 1), noKey("d"))
		l.after(4*time.Second, "v2: refused: "+noKeyProblem("b")+" | "+noKeyProblem("d"))
		s.Stop()
		l.after(500*time.Millisecond, gone+"1s")
		s = l.manage()
		s.Publish(t, "me", "2", limit("a", 1), noKey("b"), limit("c", 1), noKey("d"))
		l.after(5*time.Second, "connected") // the same is not reported again
		expectDeltaSaid(t, s, `nonce "" has a has b has c`, `nonce "1" error `+noKeyProblem("b")+"\n"+noKeyProblem("d"))
		s.Stop()
		l.after(500*time.Millisecond, gone+"1s")
		s = l.manage()
		s.Publish(t, "me", "3", limit("a", 3), limit("b", 1))
		l.after(5*time.Second, "connected", "v3: a.k=3 b.k=1")
		expectDeltaSaid(t, s, `nonce "" has a has b has c`, `nonce "1"`)
		l.Reload() // all resources are fetched again, and none is lost meanwhile
		l.after(time.Second, "connected", "v3: a.k=3 b.k=1")
		if got := deltaRequestText(s.DeltaRequests()[2]); got != `nonce "" has a? has b?` {
			t.Errorf("after a reload the server was told %s", got)
		}
		s.Publish(t, "me", "4", limit("b", 4))
		l.after(time.Second, "v4: b.k=4")
	})
}

// A LinearCache sends each change alone. Changes that come together are loaded together.
func TestDeltaLinearCache(t *testing.T) {
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		c := xdstest.NewLinearCache()
		update := func(name string, perMinute uint32) {
			t.Helper()
			if err := c.UpdateResource(name, limit(name, perMinute)); err != nil {
				t.Fatal(err)
			}
		}
		update("a", 1)
		s := xdstest.StartCache(t, l.listen(), c)
		l.after(time.Second, "connected", "v1: a.k=1")
		update("b", 2)
		l.after(time.Second, "v2: a.k=1 b.k=2")
		if err := c.UpdateResources(map[string]types.Resource{"c": limit("a", 9)}, nil); err != nil {
			t.Fatal(err)
		}
		const twice = `xds resource "c": domain "a" is already defined at xds resource "a"; join the two, rename one, or set MERGE_DOMAIN_CONFIG=true`
		l.after(time.Second, "v3: refused: "+twice)
		if err := c.DeleteResource("a"); err != nil { // c may have the domain now
			t.Fatal(err)
		}
		l.after(time.Second, "v4: a.k=9 b.k=2")
		expectDeltaSaid(t, s, `nonce ""`, `nonce "1"`, `nonce "2"`, `nonce "3" error `+twice, `nonce "4"`)
		s.Stop()
		l.after(500*time.Millisecond, "xds server passthrough:///xds: error reading from server: EOF: pause 1s")
		update("b", 5)
		xdstest.StartCache(t, l.listen(), c)
		l.after(time.Second, "connected", "v5: a.k=9 b.k=5")
	})
}

// delta returns a response with these resources, named by their messages.
func delta(t testing.TB, version, nonce string,
	domains ...*configv3.RateLimitConfig,
) *discovery.DeltaDiscoveryResponse {
	r := &discovery.DeltaDiscoveryResponse{TypeUrl: TypeURL, SystemVersionInfo: version, Nonce: nonce}
	for _, d := range domains {
		r.Resources = append(r.Resources, &discovery.Resource{Name: d.GetName(), Version: version, Resource: anyOf(t, d)})
	}
	return r
}

// playDelta starts a server that calls do for each delta stream.
func (l *lab) playDelta(do func(deltaStream) error) (stop func()) {
	return xdstest.Serve(l.t, l.listen(), &deltaScript{do: do})
}

type deltaStream = discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer

type deltaScript struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	do func(deltaStream) error
}

func (s *deltaScript) DeltaAggregatedResources(st deltaStream) error { return s.do(st) }

// TestDeltaRefused tests responses that break the protocol. They change nothing, and the stream goes on.
func TestDeltaRefused(t *testing.T) {
	const wrongType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	for _, tt := range []struct {
		name     string
		response *discovery.DeltaDiscoveryResponse
		want     string
	}{
		{
			"another type", &discovery.DeltaDiscoveryResponse{TypeUrl: wrongType},
			`xds response: its type is "` + wrongType + `"; send ` + TypeURL,
		},
		{
			"no name", &discovery.DeltaDiscoveryResponse{Resources: []*discovery.Resource{{Resource: anyOf(t, limit("b", 1))}}},
			"xds response: resource 1 has no name; send a name with each resource",
		},
		{
			"a heartbeat of nothing", &discovery.DeltaDiscoveryResponse{Resources: []*discovery.Resource{{Name: "b"}}},
			`xds response: a heartbeat of the resource "b", which was never sent; send it whole`,
		},
		{"bytes", &discovery.DeltaDiscoveryResponse{Resources: []*discovery.Resource{{
			Name:     "b",
			Resource: &anypb.Any{TypeUrl: TypeURL, Value: []byte{0xff}},
		}}}, `xds resource "b": it cannot be read: proto:`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inDeltaLab(t, nil, func(t *testing.T, l *lab) {
				refusal := make(chan string, 1)
				l.playDelta(func(st deltaStream) error {
					tt.response.Nonce = "n2"
					if err := errors.Join(st.Send(delta(t, "1", "n1", limit("a", 1))), receiveDeltas(st, 2, nil),
						st.Send(tt.response)); err != nil {
						return err
					}
					err := receiveDeltas(st, 1, func(r *discovery.DeltaDiscoveryRequest) {
						refusal <- r.GetResponseNonce() + ": " + r.GetErrorDetail().GetMessage()
					})
					err = errors.Join(err, st.Send(delta(t, "3", "n3", limit("c", 3))))
					<-st.Context().Done()
					return err
				})
				l.begin()
				if got := <-refusal; !strings.HasPrefix(got, "n2: "+tt.want) {
					t.Errorf("refused with %q, want %q", got, tt.want)
				}
				time.Sleep(time.Second)
				l.mu.Lock()
				defer l.mu.Unlock()
				if got := outcomeOf(l.last); !strings.HasPrefix(got, "v3: a.k=1 c.k=3") {
					t.Errorf("in force is %s", got)
				}
			})
		})
	}
}

// receiveDeltas receives n requests. It calls see, unless that is nil, with each.
func receiveDeltas(st deltaStream, n int, see func(*discovery.DeltaDiscoveryRequest)) error {
	for range n {
		r, err := st.Recv()
		if err != nil {
			return err
		}
		if see != nil {
			see(r)
		}
	}
	return nil
}

// A server that sends each of many resources alone, faster than they can be loaded, is answered for each response.
func TestDeltaManyResponses(t *testing.T) {
	const n = 500
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		answered := make(chan []string, 1)
		l.playDelta(func(st deltaStream) error {
			for i := range n {
				if err := st.Send(delta(t, fmt.Sprint(i), fmt.Sprint(i), limit(fmt.Sprintf("d%d", i), 1))); err != nil {
					return err
				}
			}
			var nonces []string
			err := receiveDeltas(st, n+1, func(r *discovery.DeltaDiscoveryRequest) {
				nonces = append(nonces,
					r.GetResponseNonce())
			})
			answered <- nonces
			<-st.Context().Done()
			return err
		})
		l.begin()
		nonces := <-answered
		for i := range n {
			if nonces[i+1] != fmt.Sprint(i) {
				t.Fatalf("answer %d is to nonce %s", i, nonces[i+1])
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last.PartCount != n || len(l.journal) > n/maxWaitingDeltas+2 {
			t.Errorf("%d resources in %d loads", l.last.PartCount, len(l.journal)-1)
		}
	})
}

// A server that sends a refused resource again and again is refused at growing intervals, and OnLoad is called once.
func TestDeltaRefusalsSlowDown(t *testing.T) {
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		refusals := 0
		l.playDelta(func(st deltaStream) error {
			for err := receiveDeltas(st, 1, nil); err == nil; err = receiveDeltas(st, 1, nil) {
				refusals++
				if err := st.Send(delta(t, "1", "n", noKey("a"))); err != nil {
					return err
				}
			}
			return nil
		})
		l.after(time.Minute, "connected", "v1: refused: "+noKeyProblem("a"))
		if refusals < 10 || refusals > 20 {
			t.Errorf("%d refusals in a minute", refusals)
		}
	})
}

// A server without delta xDS is named, with what to do. Rules in force stay.
func TestDeltaNotImplemented(t *testing.T) {
	const pause = "; set CONFIG_TYPE=GRPC_XDS_SOTW: this server has no delta xDS: pause 1s"
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		l.play(forever)
		l.after(500*time.Millisecond, "connected",
			"xds server passthrough:///xds: method DeltaAggregatedResources not implemented (Unimplemented)"+pause)
	})
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		l.playDelta(func(deltaStream) error { return errors.New("not implemented") })
		l.after(500*time.Millisecond, "connected", "xds server passthrough:///xds: not implemented (Unknown)"+pause)
	})
}

// A server that answers nothing, one that flaps, and a message that is too large cost no rules.
func TestDeltaFaults(t *testing.T) {
	inDeltaLab(t, nil, func(t *testing.T, l *lab) {
		l.playDelta(func(st deltaStream) error { <-st.Context().Done(); return nil })
		l.after(9*time.Second, "connected")
		l.after(time.Hour, "silence")
	})
	inDeltaLab(t, func(c *Config) { c.MaxMessageBytes = 1000 }, func(t *testing.T, l *lab) {
		streams, large := 0, limit("b", 1)
		large.Descriptors[0].Value = strings.Repeat("v", 2000)
		l.playDelta(func(st deltaStream) error {
			streams++
			if streams == 1 {
				return st.Send(delta(t, "1", "1", limit("a", 1)))
			}
			if streams == 2 {
				return errors.Join(st.Send(delta(t, "2", "1", large)), receiveDeltas(st, 2, nil))
			}
			return status.Error(codes.Unavailable, "flapping")
		})
		const server = "xds server passthrough:///xds: "
		l.after(30*time.Second,
			"connected", "v1: a.k=1", server+"the server ended the stream: pause 1s",
			"connected", server+"grpc: received message larger than max (2176 vs. 1000) (ResourceExhausted); raise "+
				"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES: pause 4s",
			"connected", server+"flapping: pause 8s",
			"connected", server+"flapping: pause 16s",
			"connected", server+"flapping: pause 16s")
		if got := outcomeOf(l.last); got != "v1: a.k=1" {
			t.Errorf("in force is %s", got)
		}
	})
}

// The resources of many responses together are bounded.
func TestDeltaTooMuch(t *testing.T) {
	var s resources
	s.resume()
	large := make([]byte, maxDeltaBytes/2)
	one := func(name string) *discovery.DeltaDiscoveryResponse {
		return &discovery.DeltaDiscoveryResponse{Resources: []*discovery.Resource{{
			Name:     name,
			Resource: &anypb.Any{TypeUrl: TypeURL, Value: large},
		}}}
	}
	for _, step := range []struct {
		response *discovery.DeltaDiscoveryResponse
		want     string
	}{
		{one("a"), ""},
		{one("b"), "xds response: all resources together are larger than 256 MiB; send fewer or smaller resources"},
		{&discovery.DeltaDiscoveryResponse{RemovedResources: []string{"a", "a", "never"}}, ""},
		{one("b"), ""},
	} {
		got := ""
		if problems := s.apply(step.response); len(problems) > 0 {
			got = problems.Error()
		}
		if got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
	if want := len(large) + len(TypeURL) + 1; s.sentBytes != want {
		t.Errorf("%d bytes are counted, want %d", s.sentBytes, want)
	}
}

// A change of one resource compiles the domains that it touches, and no other.
func TestChangeCompilesOneDomain(t *testing.T) {
	t.Parallel()
	loader := reload.Loader{Format: format}
	part := func(key, domain string, limit uint32) reload.Part {
		p := partsOf([]*anypb.Any{anyOf(t,
			&configv3.RateLimitConfig{Name: key, Domain: domain, Descriptors: []*configv3.RateLimitDescriptor{{
				Key: "k", RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_DAY, RequestsPerUnit: limit},
			}}})})[0]
		p.Key = key
		return p
	}
	var before *rules.Set
	for i, step := range []struct {
		parts    []reload.Part
		compiled string
	}{
		{[]reload.Part{part("a", "x", 1), part("b", "y", 1), part("c", "z", 1)}, "x y z"},
		{[]reload.Part{part("a", "x", 1), part("b", "y", 2), part("c", "z", 1)}, "y"},
		{[]reload.Part{part("a", "x", 1), part("c", "z", 1)}, ""},
		{[]reload.Part{part("c", "z", 1), part("d", "y", 1), part("a", "x", 1)}, "y"},
		{[]reload.Part{part("a", "w", 1), part("c", "x", 1), part("d", "y", 1)}, "w x"},
	} {
		var out reload.Result
		loader.Load(step.parts, nil, &out)
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		var compiled []string
		for _, d := range out.Set.Domains() {
			if before == nil || before.Domain([]byte(d.Name)) != d {
				compiled = append(compiled, d.Name)
			}
		}
		slices.Sort(compiled)
		if got := strings.Join(compiled, " "); got != step.compiled {
			t.Errorf("step %d compiled %q, want %q", i+1, got, step.compiled)
		}
		before = out.Set
	}
}
