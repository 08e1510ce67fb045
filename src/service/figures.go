package service

import (
	"context"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/memcached"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/metrics"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/xdsrules"
	"ratelimit/src/settings"
)

// This file declares the figures of the parts of the service, each once with all its
// names. The counters of rules are in package metrics.

// addFigures adds the figures of all parts that exist from the start.
func (s *Service) addFigures() {
	for _, read := range append(s.store.figures, metrics.RuntimeFigures, s.certFigures, s.readFigures, s.ports.figures, s.Output.figures, s.budgetFigures, s.health.figures) {
		s.counters.Add(read)
	}
	s.stats.certReads.Timeout = time.Second // scrapes do not wait longer
	s.counters.AddNative(s.clientCertFigures)
}

func memoryFigures(store *memory.Store) func() []metrics.Figure {
	return func() []metrics.Figure {
		st := store.Stats()
		return []metrics.Figure{
			metrics.Gauge("ratelimit.memory.keys", st.Keys).Native("ratelimit_store_keys", "Counters held, expired ones not swept yet included.", "store", "memory"),
			metrics.Gauge("ratelimit.memory.bytes", st.Bytes).Native("ratelimit_store_bytes", "Size of the tables of counters.", "store", "memory"),
			metrics.Count("ratelimit.memory.evicted", st.Evicted).Native("ratelimit_store_evicted_total", "Live counters dropped for want of room.", "store", "memory"),
		}
	}
}

// batchFigures are how large the batches of one store are, and how long they take.
type batchFigures struct {
	sizes metrics.Sizes
	trips metrics.Histogram
}

func (f *batchFigures) observe(hits int, took time.Duration) {
	f.sizes.Observe(hits)
	f.trips.Observe(took)
}

func redisFigures(p *pool) []metrics.Figure {
	st, stat := p.stats(), "ratelimit."+p.name+"."
	return append(
		p.figures(stat+"batches_failed", stat+"commands"),
		metrics.Count(stat+"cx_local_close", st.Dials-st.Open),
		metrics.Count(stat+"batches", st.Batches),
		metrics.Count("", st.SentOn).Native("ratelimit_store_sent_on_total", "Hits that a node of a cluster sent on to another.", "store", p.name),
	)
}

// memcacheFigures counts reads, which are increments by 0 here, as the multiget of
// envoyproxy/ratelimit.
func memcacheFigures(p *pool, n *memcached.Counts) []metrics.Figure {
	const stat = "ratelimit.memcache."
	return append(
		p.figures("", ""),
		metrics.Count(stat+"multiget.__code=success", n.Reads.Done.Load()),
		metrics.Count(stat+"multiget.__code=error", n.Reads.Failed.Load()),
		metrics.Count(stat+"increment.__code=success", n.Increments.Done.Load()),
		metrics.Count(stat+"increment.__code=miss", n.Increments.Missed.Load()),
		metrics.Count(stat+"increment.__code=error", n.Increments.Failed.Load()),
		metrics.Count(stat+"add.__code=success", n.Adds.Done.Load()),
		metrics.Count(stat+"add.__code=not_stored", n.Adds.Missed.Load()),
		metrics.Count(stat+"add.__code=error", n.Adds.Failed.Load()),
		metrics.Count(stat+"keys_requested", n.KeysRequested.Load()),
		metrics.Count(stat+"keys_found", n.KeysFound.Load()),
		metrics.Count(stat+"server_changes", n.Changes.Load()).
			Native("ratelimit_store_server_changes_total", "How often SRV found other servers than before.", "store", p.name),
		metrics.Count(stat+"lookups_failed", n.FailedLookups.Load()).
			Native("ratelimit_store_lookups_failed_total", "How often SRV found nothing.", "store", p.name),
	)
}

// figures are those of all stores with servers. Failed batches and commands have the given
// compatible names.
func (p *pool) figures(failed, commands string) []metrics.Figure {
	st, stat, labels := p.stats(), "ratelimit."+p.name+".", []string{"store", p.name}
	list := []metrics.Figure{
		metrics.Gauge("", st.Servers).
			Native("ratelimit_store_servers", "Servers that calls are sent to: one, the primaries of a cluster, or those of Memcached.", labels...),
		metrics.Gauge(stat+"cx_active", st.Open).Native("ratelimit_store_connections", "Connections that are open.", labels...),
		metrics.Count(stat+"cx_total", st.Dials).Native("ratelimit_store_dials_total", "Connections that were tried.", labels...),
		metrics.Gauge(stat+"waiting", st.Waiting).Native("ratelimit_store_calls_waiting", "Calls that wait for an answer.", labels...),
		metrics.Count(failed, st.Failed).Native("ratelimit_store_batches_failed_total", "Batches without a whole answer.", labels...),
		metrics.Count(commands, st.Commands).
			Native("ratelimit_store_commands_total", "Commands in all batches; with Memcached each is a batch.", labels...),
		metrics.Gauge("", st.BreakersOpen).Native("ratelimit_store_breakers_open", "Servers that do not answer, so that they are only probed.", labels...),
		metrics.Count("", st.BreakerOpened).
			Native("ratelimit_store_breaker_opened_total", "How often the breaker of a server opened, as it did not answer.", labels...),
		metrics.Spread(&p.batches.sizes).Native("ratelimit_store_batch_hits", "Hits that were sent in one batch.", labels...),
		metrics.Spread(&p.batches.trips).Native("ratelimit_store_round_trip_seconds", "How long a batch took to be answered.", labels...),
	}
	for cause, n := range st.Errors {
		list = append(list, metrics.Count("", n).
			Native("ratelimit_store_errors_total", "Hits that the store did not answer, by cause.", "store", p.name, "cause", cause))
	}
	return list
}

// cacheFigures are those of the over-limit cache, which envoyproxy/ratelimit has as well.
func cacheFigures(cache *overlimit.Cache) func() []metrics.Figure {
	return func() []metrics.Figure {
		st := cache.Stats()
		return []metrics.Figure{
			metrics.Gauge("ratelimit.localcache.entryCount", st.Entries),
			metrics.Gauge("ratelimit.localcache.hitCount", st.Hits),
			metrics.Gauge("ratelimit.localcache.missCount", st.Misses),
			metrics.Gauge("ratelimit.localcache.lookupCount", st.Lookups),
			metrics.Gauge("ratelimit.localcache.overwriteCount", st.Overwrites),
			metrics.Gauge("ratelimit.localcache.evacuateCount", st.Evacuated),
			metrics.Gauge("ratelimit.localcache.expiredCount", st.Expired),
			metrics.Gauge("ratelimit.localcache.averageAccessTime", st.AverageAccessTime),
		}
	}
}

func fallbackFigures(f *fallback.Store) func() []metrics.Figure {
	return func() []metrics.Figure {
		st := f.Stats()
		list := []metrics.Figure{
			metrics.Gauge("ratelimit.fallback.replicas", st.Replicas).Native("ratelimit_fallback_replicas", "How many replicas share the limits of on_store_failure: local."),
			metrics.Gauge("ratelimit.fallback.keys", st.Local.Keys).Native("ratelimit_fallback_keys", "Counters of on_store_failure: local."),
		}
		for i, word := range backend.Fallbacks() {
			list = append(list, metrics.Count("ratelimit.fallback.hits_"+word, st.Fallback[i]).
				Native("ratelimit_fallback_hits_total", "Hits that the store did not answer, by what became of them.", "instead", word))
		}
		return list
	}
}

func xdsFigures(w *xdsrules.Watcher) func() []metrics.Figure {
	return func() []metrics.Figure {
		st := w.Stats()
		return []metrics.Figure{
			metrics.Switch("ratelimit.xds.cx_active", st.Connected).Native("ratelimit_xds_connected", "1 while there is a stream to the management server."),
			metrics.Count("ratelimit.xds.cx_total", st.Streams),
			metrics.Count("ratelimit.xds.cx_failed", st.Failures),
			metrics.Count("ratelimit.xds.acks", st.Acks),
			metrics.Count("ratelimit.xds.nacks", st.Nacks),
		}
	}
}

// figures are those of the ports, except divvy's.
func (p *ports) figures() (list []metrics.Figure) {
	for _, p := range p.all() {
		l, ok := p.Listener.(*connlimit.Listener)
		if !ok {
			continue
		}
		st, stat := l.Stats(), "ratelimit."+p.name+".cx_"
		list = append(
			list,
			metrics.Gauge(stat+"active", st.Open),
			metrics.Count(stat+"total", st.Accepted),
			metrics.Count(stat+"refused", st.Refused),
			metrics.Count(stat+"evicted", st.Evicted),
			metrics.Count(stat+"idle_closed", st.Expired),
			metrics.Count(stat+"over_budget", st.OverBudget),
		)
	}
	return list
}

// figures are those of divvy's port.
func (d *divvyPort) figures() []metrics.Figure {
	st := d.server.Stats()
	list := []metrics.Figure{
		metrics.Gauge("ratelimit.divvy.cx_active", st.Open),
		metrics.Count("ratelimit.divvy.cx_total", st.Accepted),
		metrics.Count("ratelimit.divvy.cx_refused", st.Refused),
		metrics.Count("ratelimit.divvy.cx_evicted", st.Evicted),
		metrics.Count("ratelimit.divvy.cx_over_budget", st.OverBudget),
		metrics.Count("ratelimit.divvy.hits", st.Hits),
	}
	for code, n := range st.Errors {
		list = append(list, metrics.Count("ratelimit.divvy.error."+code, n))
	}
	return list
}

// budgetFigures are those of the memory that all callers share, and of what the gRPC
// port refused because of it.
func (s *Service) budgetFigures() []metrics.Figure {
	guard := s.front.grpc.Guard
	return []metrics.Figure{
		metrics.Gauge("ratelimit.buffered.bytes", s.held.Held()).
			Native("ratelimit_buffered_bytes", "Bytes held for callers: requests, unread replies, streams, HTTP bodies."),
		metrics.Gauge("", s.held.Max()).Native("ratelimit_buffered_max_bytes", "The most bytes held for callers, MAX_BUFFERED_BYTES."),
		metrics.Count("ratelimit.buffered.evicted", s.held.Evicted()).
			Native("ratelimit_buffered_evicted_total", "Connections closed because they held the most when MAX_BUFFERED_BYTES was reached."),
		metrics.Count("ratelimit.grpc.cx_stalled", guard.Stalled.Load()).
			Native("ratelimit_grpc_stalled_connections_total", "Connections closed because the client did not read for 10 s."),
		metrics.Count("ratelimit.grpc.cx_slowed", guard.Slowed.Load()).
			Native("ratelimit_grpc_slowed_reads_total", "Reads delayed because a client sent more control frames or resets than it may."),
		metrics.Count("ratelimit.grpc.streams_refused", guard.LongRefused.Load()).
			Native("ratelimit_grpc_refused_streams_total", "Health watches and reflection calls beyond the number that is allowed."),
	}
}

// figures are those of the queue of log lines.
func (o *Output) figures() []metrics.Figure {
	st := o.err.Stats()
	return []metrics.Figure{
		metrics.Count("ratelimit.log.dropped", st.Dropped).Native("ratelimit_log_dropped_total", "Log lines dropped because the reader of stderr did not keep up."),
		metrics.Count("ratelimit.log.write_errors", st.Failed).Native("ratelimit_log_write_errors_total", "Writes to stderr that failed; they are repeated."),
		metrics.Gauge("ratelimit.log.waiting", st.Waiting).Native("ratelimit_log_waiting_bytes", "Bytes of log lines that are not written yet."),
	}
}

// figures are the states that alerts use.
func (h *health) figures() []metrics.Figure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return []metrics.Figure{
		metrics.Switch("", h.why() == reason{}).Native("ratelimit_ready", "1 while this process should get traffic, as its health checks say."),
		metrics.Switch("", h.rules.refused != nil).
			Native("ratelimit_config_refused", "1 while the rules that are there are not those in force, since they have a mistake."),
		metrics.Gauge("", h.rules.domains).Native("ratelimit_config_domains", "How many domains the rules in force have. Without one, everything passes."),
	}
}

// certFigures are those of the certificates of ports.
func (s *Service) certFigures() (list []metrics.Figure) {
	const reloads, reloadsHelp = "ratelimit_tls_reloads_total", "Changes of the certificates of a port."
	for _, p := range s.ports.secure() {
		st, stat := p.certs.Stats(), "ratelimit.tls."+p.name+"."
		list = append(
			list,
			metrics.Gauge(stat+"not_after", st.NotAfter.Unix()).
				Native("ratelimit_tls_certificate_expiry_timestamp_seconds", "When the certificate of a port ends.", "port", p.name),
			metrics.Count(stat+"reloads", st.Loaded).Native(reloads, reloadsHelp, "port", p.name, "result", "success"),
			metrics.Count(stat+"refused", st.Refused).Native(reloads, reloadsHelp, "port", p.name, "result", "error"),
		)
	}
	return list
}

// clientCertFigures say when the certificates expire that this process shows to servers.
// Each connection reads the files anew, and so does this.
func (s *Service) clientCertFigures() (list []metrics.Figure) {
	shown := map[string]string{}
	if s.Settings.ConfigType == settings.ConfigXDS && s.Settings.XDS.TLS {
		shown["xds"] = s.Settings.XDS.ClientCert
	}
	switch s.Settings.BackendType {
	case "redis":
		if s.Settings.Redis.TLS || s.Settings.RedisSplit && s.Settings.RedisPerSecond.TLS {
			shown["redis"] = s.Settings.RedisTLS.ClientCert
		}
	case "memcache":
		if s.Settings.Memcache.TLS {
			shown["memcache"] = s.Settings.Memcache.TLSFiles.ClientCert
		}
	}
	for to, file := range shown {
		if file == "" {
			continue
		}
		ends, err := files.Read(context.Background(), &s.stats.certReads, func() (time.Time, error) { return certs.NotAfter(file) })
		if err != nil {
			ends = time.Unix(0, 0) // as bad as a certificate that expired long ago
		}
		list = append(list, metrics.Gauge("", ends.Unix()).Native("ratelimit_tls_client_certificate_expiry_timestamp_seconds",
			"When the certificate ends that is shown to a server, 0 if its file cannot be read.", "to", to))
	}
	return list
}

// readFigures are how many reads of files were abandoned and have not returned.
func (s *Service) readFigures() (list []metrics.Figure) {
	hanging := func(of string, n int) {
		list = append(list, metrics.Gauge("ratelimit.reads_hanging."+of, n).
			Native("ratelimit_reads_hanging", "Reads of files that were given up, as they took too long, and have not returned.", "of", of))
	}
	if files, ok := s.rules.source.(*filerules.Watcher); ok {
		hanging("rules", files.Hanging())
	}
	for _, p := range s.ports.secure() {
		hanging("tls_"+p.name, p.certs.Stats().Hanging)
	}
	return list
}
