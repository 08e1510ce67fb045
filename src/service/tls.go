package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/settings"
)

// certStats are the figures of certificates for statsd and the debug port.
func (s *Service) certStats(add func(metrics.Stat)) {
	for _, p := range s.ports.secure() {
		st, prefix := p.certs.Stats(), "ratelimit.tls."+p.name+"."
		add(metrics.Stat{Name: prefix + "not_after", Kind: metrics.KindGauge, Value: st.NotAfter.Unix()})
		add(metrics.Stat{Name: prefix + "reloads", Kind: metrics.KindCounter, Value: int64(st.Loaded)})
		add(metrics.Stat{Name: prefix + "refused", Kind: metrics.KindCounter, Value: int64(st.Refused)})
	}
}

// certSamples are the same as native metrics.
func (s *Service) certSamples(add func(prometheus.Sample)) {
	for _, p := range s.ports.secure() {
		st := p.certs.Stats()
		add(prometheus.Sample{
			Name: "ratelimit_tls_certificate_expiry_timestamp_seconds", Help: "When the certificate of a port ends.",
			Labels: []string{"port", p.name}, Kind: metrics.KindGauge, Value: float64(st.NotAfter.Unix()),
		})
		for result, n := range map[string]uint64{"success": st.Loaded, "error": st.Refused} {
			add(prometheus.Sample{
				Name: "ratelimit_tls_reloads_total", Help: "Changes of the certificates of a port.",
				Labels: []string{"port", p.name, "result", result}, Kind: metrics.KindCounter, Value: float64(n),
			})
		}
	}
}

// clientCertSamples tell when the certificates end that this process shows to others.
// The files are read anew for each connection, and so they are for this.
func (s *Service) clientCertSamples(add func(prometheus.Sample)) {
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
			ends = time.Unix(0, 0) // nothing can be shown: as bad as one that ended long ago
		}
		add(prometheus.Sample{
			Name: "ratelimit_tls_client_certificate_expiry_timestamp_seconds", Help: "When the certificate ends that is shown to a server, 0 if its file cannot be read.",
			Labels: []string{"to", to}, Kind: metrics.KindGauge, Value: float64(ends.Unix()),
		})
	}
}

// hangingFile adds to an error of package files the settings that name the files.
func hangingFile(settings string, err error) error {
	var hangs *files.TimeoutError
	if errors.As(err, &hangs) {
		return fmt.Errorf("%s: %w", settings, err)
	}
	return err
}

// hangingReads are how many reads of files were given up and have not returned, by
// what is read.
func (s *Service) hangingReads() map[string]int {
	counts := make(map[string]int)
	if files, ok := s.rules.source.(*filerules.Watcher); ok {
		counts["rules"] = files.Hanging()
	}
	for _, p := range s.ports.secure() {
		counts["tls_"+p.name] = p.certs.Stats().Hanging
	}
	return counts
}

// hangingStats are these for statsd and the debug port.
func (s *Service) hangingStats(add func(metrics.Stat)) {
	for of, n := range s.hangingReads() {
		add(metrics.Stat{Name: "ratelimit.reads_hanging." + of, Kind: metrics.KindGauge, Value: int64(n)})
	}
}

// hangingSamples are the same as native metrics.
func (s *Service) hangingSamples(add func(prometheus.Sample)) {
	for of, n := range s.hangingReads() {
		add(prometheus.Sample{
			Name: "ratelimit_reads_hanging", Help: "Reads of files that were given up, as they took too long, and have not returned.",
			Labels: []string{"of", of}, Kind: metrics.KindGauge, Value: float64(n),
		})
	}
}

// verifyChain verifies the server's certificate, whatever name is in it.
func verifyChain(state tls.ConnectionState, roots *x509.CertPool) error {
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
	return err
}
