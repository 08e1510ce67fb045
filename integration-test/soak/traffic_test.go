package soak

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// tally counts what became of requests that deserve an answer.
type tally struct {
	answered, unavailable, wrong atomic.Int64
	first                        atomic.Pointer[string] // of the wrong ones
}

func (c *tally) add(code codes.Code, text string) {
	switch code {
	case codes.OK:
		c.answered.Add(1)
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted: // the last one: the store is too slow.
		c.unavailable.Add(1)
	default:
		c.wrong.Add(1)
		c.first.CompareAndSwap(nil, &text)
	}
}

// forever calls f at this pace, as long as ctx lasts.
func forever(ctx context.Context, every time.Duration, f func(n int) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := f(n); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// perCall is how many descriptors a call has, each with a value of its own.
const perCall = 20

// fresh returns a request with new keys.
func fresh() *pb.RateLimitRequest {
	r := &pb.RateLimitRequest{Domain: "soak"}
	for i := range perCall {
		key := []string{"user", "path", "log", "bucket", "shown"}[i%5]
		r.Descriptors = append(r.Descriptors, &common.RateLimitDescriptor{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprintf("%016x", rand.Uint64())}},
		})
	}
	r.Descriptors = append(r.Descriptors, &common.RateLimitDescriptor{
		Entries: []*common.RateLimitDescriptor_Entry{{Key: "hot", Value: "one"}},
	})
	return r
}

func dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// ask makes so many calls over one connection.
func (s *service) ask(ctx context.Context, c *tally, conn *grpc.ClientConn, calls int) {
	for range calls {
		ctx, cancel := context.WithTimeout(ctx, harnessCall)
		_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, fresh())
		cancel()
		c.add(status.Code(err), fmt.Sprintf("gRPC: %v", err))
	}
}

// harnessCall is how long a call may take on a machine that has other things to do.
const harnessCall = 20 * time.Second

// steady is a client that stays.
func (s *service) steady(ctx context.Context, c *tally) error {
	conn, err := dial(s.Addrs["grpc"])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return forever(ctx, 2*time.Millisecond, func(int) error {
		s.ask(context.WithoutCancel(ctx), c, conn, 1)
		return nil
	})
}

// comers are clients that come, ask and go: over gRPC, /json, divvy and RESP.
func (s *service) comers(ctx context.Context, c *tally) error {
	return forever(ctx, 20*time.Millisecond, func(n int) error {
		switch n % 4 {
		case 0:
			conn, err := dial(s.Addrs["grpc"])
			if err != nil {
				return err
			}
			s.ask(context.WithoutCancel(ctx), c, conn, 3)
			return conn.Close()
		case 1:
			body := fmt.Sprintf(`{"domain":"soak","descriptors":[{"entries":[{"key":"user","value":"%x"}]}]}`, rand.Uint64())
			resp, err := web.Post("http://"+s.Addrs["http"]+"/json", "application/json", strings.NewReader(body))
			if err != nil {
				return err
			}
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			code := codes.Unknown
			switch resp.StatusCode {
			case http.StatusOK, http.StatusTooManyRequests:
				code = codes.OK
			case http.StatusServiceUnavailable:
				code = codes.Unavailable
			}
			c.add(code, fmt.Sprintf("/json: %s %s", resp.Status, text))
			return resp.Body.Close()
		case 2:
			return s.askRedis(c)
		}
		return s.hit(c)
	})
}

// hit asks a few times over divvy's protocol, at once, and leaves.
func (s *service) hit(c *tally) error {
	conn, err := net.DialTimeout("tcp", s.Addrs["divvy"], harnessCall)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(harnessCall)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "HIT user=%x\nHIT path=%x\n", rand.Uint64(), rand.Uint64()); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for range 2 {
		switch line, err := in.ReadString('\n'); {
		case strings.HasPrefix(line, "OK "):
			c.add(codes.OK, "")
		case strings.HasPrefix(line, `ERR unknown "The store`):
			c.add(codes.Unavailable, "")
			return nil // it ends the connection
		default:
			c.add(codes.Unknown, fmt.Sprintf("divvy: %q, %v", line, err))
			return nil
		}
	}
	return nil
}

// askRedis asks a few times as a client of Redis, at once, and leaves.
func (s *service) askRedis(c *tally) error {
	conn, err := net.DialTimeout("tcp", s.Addrs["resp"], harnessCall)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(harnessCall)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "RATELIMIT soak user %x\r\nRATELIMIT soak path %x\r\n", rand.Uint64(),
		rand.Uint64()); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for range 2 {
		line, err := in.ReadString('\n')
		switch {
		case line == "*5\r\n":
			for range 5 {
				if line, err = in.ReadString('\n'); err != nil || line[0] != ':' {
					c.add(codes.Unknown, fmt.Sprintf("RESP: %q, %v", line, err))
					return nil
				}
			}
			c.add(codes.OK, "")
		case strings.HasPrefix(line, "-ERR the store did not answer"):
			c.add(codes.Unavailable, "")
		default:
			c.add(codes.Unknown, fmt.Sprintf("RESP: %q, %v", line, err))
			return nil
		}
	}
	return nil
}

// writeRules writes the rules of a generation: some that stay, some
// new ones, and every seventh time a mistake.
func writeRules(dir string, generation int) error {
	var text strings.Builder
	text.WriteString("domain: soak\ndescriptors:\n")
	for _, rule := range []string{
		"{key: hot, rate_limit: {unit: second, requests_per_unit: 1000}}",
		"{key: user, rate_limit: {unit: minute, requests_per_unit: 10}}",
		"{key: path, rate_limits: [{unit: hour, requests_per_unit: 10}, {unit: second, requests_per_unit: 1, algorithm: " +
			"sliding_window_counter, count_blocked: true}]}",
		"{key: shown, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}",
	} {
		text.WriteString("- " + rule + "\n")
	}
	for i := range 20 {
		fmt.Fprintf(&text, "- {key: rule-%d-%d, rate_limit: {unit: hour, requests_per_unit: %d}}\n", generation, i,
			generation+1)
	}
	if generation%7 == 6 {
		text.WriteString("- {key: broken, rate_limit: {unit: fortnight}}\n")
	}
	draft := filepath.Join(filepath.Dir(dir), "draft")
	if err := os.WriteFile(draft, []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, filepath.Join(dir, "soak.yaml"))
}

// reload changes the rules, and asks for the new ones; at the end they are good.
func (s *service) reload(ctx context.Context) error {
	err := forever(ctx, 300*time.Millisecond, func(n int) error {
		if err := writeRules(s.Rules, n+1); err != nil || n%5 != 0 {
			return err
		}
		return s.Signal(syscall.SIGHUP)
	})
	if err != nil {
		return err
	}
	return writeRules(s.Rules, 0)
}

// scrape reads all that there is to read.
func (s *service) scrape(ctx context.Context) error {
	return forever(ctx, 500*time.Millisecond, func(int) error {
		for _, url := range []string{
			s.Addrs["prometheus"] + "/metrics", s.Addrs["debug"] + "/rlconfig?format=yaml",
			s.Addrs["debug"] + "/stats?format=json", s.Addrs["http"] + "/livez",
			s.Addrs["debug"] + "/explain?domain=soak&descriptors=user=a,b=c&descriptors=path=x",
		} {
			text, err := page("http://" + url)
			if err != nil && !strings.Contains(err.Error(), "503") { // /explain asks the store
				return err
			}
			if err == nil && text == "" {
				return fmt.Errorf("%s is empty", url)
			}
		}
		return nil
	})
}
