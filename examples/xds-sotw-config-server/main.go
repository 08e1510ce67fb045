// Xds-sotw-config-server serves a directory of rule files to rate limit services
// over xDS: a management server as small as they get, to try CONFIG_TYPE
// GRPC_XDS_SOTW with and to begin your own from.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:18000", "address to serve on, in plain text")
	dir := flag.String("dir", "../ratelimit/config", "directory of rule files")
	merge := flag.Bool("merge", false, "allow one domain in several files, as MERGE_DOMAIN_CONFIG does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *dir, compile.Options{MergeDomains: *merge}); err != nil {
		log.Fatal(err) // nothing is deferred that matters
	}
}

// run serves until ctx ends.
func run(ctx context.Context, listen, dir string, opt compile.Options) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	log.Printf("listening on %v", l.Addr())

	s := newServer(ctx)
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)

	// The watcher checks the rules, too: what is wrong with them is said here,
	// with file and line, and not by each service.
	watcher := filerules.New(filerules.Config{
		Path:            dir,
		ElsewhereAdvice: "name another directory",
		Debounce:        100 * time.Millisecond,
		PollInterval:    30 * time.Second,
		Config: reload.Config{Options: opt, OnLoad: func(l reload.Result) {
			if l.Err != nil {
				log.Printf("not served:\n%v", l.Err)
				return
			}
			if err := publish(ctx, s, dir, opt); err != nil {
				log.Printf("not served: %v", err)
			}
		}},
		OnMissingEvents: func(err error) { log.Print(err) },
	})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { return g.Serve(l) })
	group.Go(func() error {
		<-ctx.Done()
		g.Stop() // services keep what they have
		return nil
	})
	if err := group.Wait(); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// publish reads the directory and serves what is in it.
func publish(ctx context.Context, s *server, dir string, opt compile.Options) error {
	files, _, err := filerules.Read(dir)
	if err != nil {
		return err
	}
	domains, err := domains(files, opt)
	if err != nil {
		return err
	}
	version, err := s.publish(ctx, domains)
	if err != nil {
		return fmt.Errorf("publishing %d domains: %w", len(domains), err)
	}
	log.Printf("serving version %s: %d files", version, len(domains))
	return nil
}
