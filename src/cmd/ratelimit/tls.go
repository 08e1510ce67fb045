package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/settings"
)

// portCerts are the certificates of one port.
type portCerts struct {
	port string
	*certs.Server
}

// serverTLS is what a port speaks TLS with; nil: it does not.
func (s *server) serverTLS(port string, t settings.ServerTLS, protocols ...string) (*tls.Config, error) {
	if !t.On {
		return nil, nil
	}
	c, err := certs.New(certs.Config{
		Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA, ClientName: t.ClientName, Protocols: protocols,
		OnChange: func(err error) {
			if err != nil {
				s.log.Errorf("the %s port keeps its old certificates: %v", port, err)
			} else {
				s.log.Infof("the %s port has new certificates", port)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.certs = append(s.certs, portCerts{port, c})
	return c.TLS(), nil
}

// overTLS is l, whose connections speak TLS if cfg says how.
func overTLS(l net.Listener, cfg *tls.Config) net.Listener {
	if cfg == nil {
		return l
	}
	return tls.NewListener(l, cfg)
}

// certStats are the figures of certificates for statsd and the debug port.
func (s *server) certStats(add func(metrics.Stat)) {
	for _, c := range s.certs {
		st, prefix := c.Stats(), "ratelimit.tls."+c.port+"."
		add(metrics.Stat{Name: prefix + "not_after", Kind: metrics.KindGauge, Value: st.NotAfter.Unix()})
		add(metrics.Stat{Name: prefix + "reloads", Kind: metrics.KindCounter, Value: int64(st.Loaded)})
		add(metrics.Stat{Name: prefix + "refused", Kind: metrics.KindCounter, Value: int64(st.Refused)})
	}
}

// certSamples are the same as native metrics.
func (s *server) certSamples(add func(prometheus.Sample)) {
	for _, c := range s.certs {
		st := c.Stats()
		add(prometheus.Sample{
			Name: "ratelimit_tls_certificate_expiry_timestamp_seconds", Help: "When the certificate of a port ends.",
			Labels: []string{"port", c.port}, Kind: metrics.KindGauge, Value: float64(st.NotAfter.Unix()),
		})
		for result, n := range map[string]uint64{"success": st.Loaded, "error": st.Refused} {
			add(prometheus.Sample{
				Name: "ratelimit_tls_reloads_total", Help: "Changes of the certificates of a port.",
				Labels: []string{"port", c.port, "result", result}, Kind: metrics.KindCounter, Value: float64(n),
			})
		}
	}
}

// clientCertSamples tell when the certificates end that this process shows to others.
// The files are read anew for each connection, and so they are for this.
func (s *server) clientCertSamples(add func(prometheus.Sample)) {
	shown := map[string]string{}
	if s.cfg.ConfigType == settings.ConfigXDS && s.cfg.XDS.TLS {
		shown["xds"] = s.cfg.XDS.ClientCert
	}
	switch s.cfg.BackendType {
	case "redis":
		if s.cfg.Redis.TLS || s.cfg.RedisSplit && s.cfg.RedisPerSecond.TLS {
			shown["redis"] = s.cfg.RedisTLS.ClientCert
		}
	case "memcache":
		if s.cfg.Memcache.TLS {
			shown["memcache"] = s.cfg.Memcache.TLSFiles.ClientCert
		}
	}
	for to, file := range shown {
		if file == "" {
			continue
		}
		ends, err := files.Read(context.Background(), &s.clientCertReads, func() (time.Time, error) { return certs.NotAfter(file) })
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
func (s *server) hangingReads() map[string]int {
	counts := make(map[string]int)
	if files, ok := s.source.(*filerules.Watcher); ok {
		counts["rules"] = files.Hanging()
	}
	for _, c := range s.certs {
		counts["tls_"+c.port] = c.Stats().Hanging
	}
	return counts
}

// hangingStats are these for statsd and the debug port.
func (s *server) hangingStats(add func(metrics.Stat)) {
	for of, n := range s.hangingReads() {
		add(metrics.Stat{Name: "ratelimit.reads_hanging." + of, Kind: metrics.KindGauge, Value: int64(n)})
	}
}

// hangingSamples are the same as native metrics.
func (s *server) hangingSamples(add func(prometheus.Sample)) {
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

// httpTLS makes what the HTTP ports speak TLS with.
func (s *server) httpTLS() (err error) {
	if s.tls.http, err = s.serverTLS("http", s.cfg.HTTPTLS, "http/1.1"); err != nil {
		return fmt.Errorf("HTTP_TLS_CERT: %w", err)
	}
	if s.tls.debug, err = s.serverTLS("debug", s.cfg.DebugTLS, "http/1.1"); err != nil {
		return fmt.Errorf("DEBUG_TLS_CERT: %w", err)
	}
	return nil
}
