package service

import (
	"crypto/tls"
	"fmt"
	"time"

	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/peers"
	"ratelimit/src/operator/recording"
	"ratelimit/src/operator/unmatched"
	"ratelimit/src/service/health"
	"ratelimit/src/service/ports"
	"ratelimit/src/service/store"
)

// observers watch decisions for the debug port. Without that port they only log traffic without a rule.
type observers struct {
	*operator.Observer
	recording *recording.Recorder
	recorders []limiter.Recorder // what the limiter must tell its decisions
}

func newObservers(f *foundation, s *store.Store, isDebugPortOpen bool) *observers {
	// Without denials, no values of requests are kept.
	tracker := unmatched.New(unmatched.Config{
		HidesValues: !isDebugPortOpen || f.Settings.RecentDenials == 0, OnSample: logUnmatched(f.log),
	})
	f.run(tracker.Run)
	cfg := operator.Config{Registry: f.counters, ShadowMode: f.Settings.ShadowMode, Unmatched: tracker}
	o := &observers{recording: recording.New(rls.AppendJSONRequest), recorders: []limiter.Recorder{tracker}}
	if !isDebugPortOpen {
		o.Observer = operator.NewObserver(cfg)
		return o
	}
	if s.LeaseUses != nil {
		cfg.Leases = func(owner uint32) operator.Leases { return operator.Leases(s.LeaseUses()[owner]) }
	}
	cfg.SubjectRules, cfg.Denials = f.Settings.TopSubjectsRules, f.Settings.RecentDenials
	o.Observer = operator.NewObserver(cfg)
	o.recorders = append(append(o.recorders, o.Recorders()...), o.recording)
	f.run(o.Runners()...)
	return o
}

// sumFigures returns the sums of the figures of this replica and its peers; nil without peers.
func (f *foundation) sumFigures(own *operator.Figures, debug *ports.Port) (*operator.SumFigures, error) {
	s := f.Settings
	if len(s.DebugPeers) == 0 || debug.Listener == nil {
		return nil, nil
	}
	p, err := peers.New(peers.Config{Addresses: s.DebugPeers, Own: own, Port: debugport.Config{
		DefaultPort: "6070", Token: f.ownToken,
		TLS: func(isHTTPS bool, name string) (*tls.Config, error) {
			if !isHTTPS && !s.DebugTLS.On {
				return nil, nil
			}
			files := certs.Client{
				CA: s.PeersTLS.CACert, Cert: s.PeersTLS.Cert, Key: s.PeersTLS.Key, ServerName: name,
				CAName: "DEBUG_PEERS_TLS_CACERT", PairName: "DEBUG_PEERS_TLS_CERT and DEBUG_PEERS_TLS_KEY",
			}
			return files.TLS()
		},
		Advice: debugport.Advice{
			NoTLS:     "give all replicas certificates, or leave out https:// in DEBUG_PEERS",
			UseTLS:    "write https:// before its address in DEBUG_PEERS",
			Authority: "name the authority of its certificate with DEBUG_PEERS_TLS_CACERT",
			SetToken:  "set DEBUG_TOKEN to the same for all replicas",
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("DEBUG_PEERS: %w", err)
	}
	f.run(p.Run)
	return p.Figures(), nil
}

// state returns the state of this process, its store and its rules.
func (s *Service) state() operator.State {
	st := operator.State{
		Version: s.Version, Commit: s.Commit, Now: time.Now(),
		Ready: s.health.UnhealthyReason(health.Operators) == "", Components: s.health.Components(health.Operators),
		Store: s.Settings.BackendType, Replicas: 1,
	}
	if st.Store == "memcache" {
		st.Store = "memcached"
	}
	if r := s.store.Replicas; r != nil {
		if st.Replicas = 0; r.Known() {
			st.Replicas = r.Count()
		}
	}
	stores, set := s.store.State(), s.limiter.Rules()
	for _, p := range stores.Pools {
		if p.Outage != nil {
			st.Outages = append(st.Outages, operator.Outage(*p.Outage))
		}
	}
	st.OnStoreFailure = s.store.FallbacksOf(set)
	st.StoreSince, st.Rules = stores.ChangedAt, s.health.LoadedRules()
	st.Rules.Files = int(s.sources.FilesInForce.Load())
	if set != nil {
		st.Rules.Domains, st.Rules.Rules = len(set.Domains()), len(set.Rules())
	}
	return st
}
