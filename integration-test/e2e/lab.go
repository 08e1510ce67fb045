package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/harness"
)

// lab is the servers, all running, of which one at a time is asked.
type lab struct {
	opt         *options
	redisServer string // path of the program
	progress    io.Writer

	dir          string // of our own, for everything
	binary       string // path of ratelimit
	generator    string // path of integration-test/load
	running      []*process
	empty        server
	services     map[serviceKey]server
	redis        *process // nil until a case needs it
	redisAddr    string
	far          *delayProxy // likewise
	redisVersion string
}

// serviceKey names one of our services.
type serviceKey struct {
	store  store
	engine string
}

// server is what the generator is pointed at.
type server struct {
	addr      string
	debugAddr string          // empty for other servers than ours
	processes []bench.Process // whose CPU time a call costs
}

// Names of processes.
const (
	serverName = "server"
	redisName  = "redis"
)

// open builds the programs and starts the services that are needed. close ends it, also
// after an error.
func (l *lab) open(ctx context.Context, needed []serviceKey) error {
	var err error
	if l.dir, err = os.MkdirTemp("", "ratelimit-e2e-"); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(l.dir, "config"), 0o700); err != nil { // where the service looks by default
		return err
	}
	if err := os.WriteFile(filepath.Join(l.dir, "config", "bench.yaml"), []byte(rules), 0o600); err != nil {
		return err
	}
	if l.binary, err = harness.BuildService(l.dir); err != nil {
		return err
	}
	if l.generator, err = harness.BuildLoad(l.dir); err != nil {
		return err
	}
	if err := l.startEmpty(ctx); err != nil {
		return err
	}
	l.services = make(map[serviceKey]server)
	for _, k := range needed {
		if _, started := l.services[k]; started {
			continue
		}
		srv, err := l.startService(ctx, k, l.runtimeEnv()...)
		if err != nil {
			return err
		}
		l.services[k] = srv
	}
	return nil
}

func (l *lab) close() error {
	var problems []error
	if l.far != nil {
		defer func() { _ = l.far.close() }() // after the services; there is nothing to lose
	}
	for i := len(l.running) - 1; i >= 0; i-- {
		problems = append(problems, l.running[i].stop())
	}
	if l.dir != "" {
		problems = append(problems, os.RemoveAll(l.dir))
	}
	return errors.Join(problems...)
}

// runtimeEnv is how Go's runtime is set in all servers of ours and the empty one.
func (l *lab) runtimeEnv() []string { return []string{"GOGC=" + strconv.Itoa(l.opt.gogc)} }

func (l *lab) start(name string, env []string, path string, args ...string) (*process, error) {
	p, err := start(l.dir, name, env, path, args...)
	if err != nil {
		return nil, err
	}
	l.running = append(l.running, p)
	return p, nil
}

func (l *lab) startEmpty(ctx context.Context) error {
	p, err := l.start("empty", l.runtimeEnv(), l.binary, "bench", "--null", "127.0.0.1:0", "--null-workers",
		strconv.FormatUint(uint64(l.opt.nullWorkers), 10))
	if err != nil {
		return err
	}
	l.empty.processes = []bench.Process{{Name: serverName, PID: p.pid()}}
	return p.await(ctx, func() error {
		line, _, whole := strings.Cut(p.log(), "\n")
		addr, says := strings.CutPrefix(line, "listening on ")
		if !says || !whole {
			return errors.New("it has not said where it listens")
		}
		l.empty.addr = addr
		return nil
	})
}

// storeEnv returns the variables of a store, and starts Redis for the first that needs it. A timeout above the default
// keeps a busy machine from being taken for a Redis that does not answer.
func (l *lab) storeEnv(ctx context.Context, s store) (env []string, err error) {
	if s == inMemory {
		return []string{"BACKEND_TYPE=memory"}, nil
	}
	if l.redis == nil {
		if l.redis, l.redisAddr, err = l.startRedis(ctx); err != nil {
			return nil, err
		}
	}
	addr := l.redisAddr
	if s == inFarRedis {
		if l.far == nil {
			if l.far, err = startDelayProxy(l.redisAddr, farAway); err != nil {
				return nil, err
			}
		}
		addr = l.far.addr()
	}
	env = []string{"BACKEND_TYPE=redis", "REDIS_URL=" + addr, "REDIS_TIMEOUT=5s"}
	switch s {
	case inLocalCache:
		env = append(env, "LOCAL_CACHE_SIZE_IN_BYTES=1048576")
	case inLeases:
		env = append(env, "COUNTING_MODE=leased")
	}
	return env, nil
}

// startService starts ours.
func (l *lab) startService(ctx context.Context, k serviceKey, env ...string) (server, error) {
	storeEnv, err := l.storeEnv(ctx, k.store)
	if err != nil {
		return server{}, err
	}
	env = append(append(env, storeEnv...),
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
		"RUNTIME_ROOT="+l.dir, "LOG_FORMAT=json", "GRPC_ENGINE="+k.engine)
	p, err := l.start(fmt.Sprintf("service-%s-%s-%d", k.store, k.engine, len(l.running)), env, l.binary, "serve")
	if err != nil {
		return server{}, err
	}
	srv := server{processes: []bench.Process{{Name: serverName, PID: p.pid()}}}
	if k.store != inMemory {
		srv.processes = append(srv.processes, bench.Process{Name: redisName, PID: l.redis.pid()})
	}
	err = p.await(ctx, func() error {
		for line := range strings.Lines(p.log()) {
			var entry struct {
				Message string `json:"@message"`
				GRPC    string `json:"grpc"`
				Debug   string `json:"debug"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "ready" {
				srv.addr, srv.debugAddr = entry.GRPC, entry.Debug
				return nil
			}
		}
		return errors.New("it has not said that it is ready")
	})
	return srv, err
}

// startRedis starts a redis-server that keeps nothing on disk.
func (l *lab) startRedis(ctx context.Context) (*process, string, error) {
	for try := 1; ; try++ {
		port, err := freePort(ctx)
		if err != nil {
			return nil, "", err
		}
		p, err := l.start(redisName, nil, l.redisServer, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly",
			"no", "--dir", l.dir)
		if err != nil {
			return nil, "", err
		}
		addr := net.JoinHostPort("127.0.0.1", port)
		err = p.await(ctx, func() error {
			info, err := redisInfo(ctx, addr)
			if err == nil && info["process_id"] != strconv.Itoa(p.pid()) {
				err = fmt.Errorf("process %s answers at %s", info["process_id"], addr)
			}
			l.redisVersion = info["redis_version"]
			return err
		})
		if err == nil {
			return p, addr, nil
		}
		if !errors.Is(err, errEnded) || try == 5 { // another process may have taken the port
			return nil, "", err
		}
	}
}

// freePort returns a port that was free a moment ago.
func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// redisInfo asks a Redis for INFO server.
func redisInfo(ctx context.Context, addr string) (map[string]string, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // all is read
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, "INFO server\r\n"); err != nil {
		return nil, err
	}
	info := make(map[string]string)
	lines := bufio.NewScanner(conn)
	for lines.Scan() { // the reply is a length, lines, and an empty one
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			info[name] = value
		} else if lines.Text() == "" {
			return info, nil
		}
	}
	return nil, fmt.Errorf("INFO: the reply broke off: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}
