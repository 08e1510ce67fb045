package bench

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/frontend/rls"
)

const connectTimeout = 5 * time.Second

// flowWindow is the flow control window, in bytes, of connections and calls. Without a fixed one, grpc-go would ping
// the server to find it.
const flowWindow = 1 << 20

// Client opens a connection to the server of cfg, for the messages of l.
type Client func(ctx context.Context, cfg *Config, l *Load) (Connection, error)

// Connection is an open connection to the server.
type Connection interface {
	// Loops returns what makes the calls of a phase, Config.InFlight at a time, and counts them in t.
	Loops(t *Tally) []Loop
	// Close closes the connection. No call is under way.
	Close()
}

// connect opens all connections. The caller closes those that it returns, also with an error.
func connect(ctx context.Context, cfg *Config, l *Load) ([]Connection, error) {
	client := cfg.Client
	if client == nil {
		client = newGRPCConn
	}
	var conns []Connection
	for range cfg.Connections {
		c, err := client(ctx, cfg, l)
		if err != nil {
			return conns, fmt.Errorf("cannot reach %s: %s (start a server there or name another address; with TLS on one side "+
				"only, this fails too)",
				cfg.Addr, status.Convert(err).Message())
		}
		conns = append(conns, c)
	}
	return conns, nil
}

type grpcConn struct {
	*grpc.ClientConn
	cfg  *Config
	load *Load
}

func newGRPCConn(ctx context.Context, cfg *Config, l *Load) (Connection, error) {
	creds := cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(cfg.Addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(flowWindow),
		grpc.WithInitialConnWindowSize(flowWindow))
	if err != nil {
		return nil, err
	}
	c := &grpcConn{conn, cfg, l}
	if err := awaitServer(ctx, conn); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the connection.
func (c *grpcConn) Close() { _ = c.ClientConn.Close() } // No call is under way any more.

// Loops returns a worker for each call in flight.
func (c *grpcConn) Loops(t *Tally) (workers []Loop) {
	for range c.cfg.InFlight {
		workers = append(workers, worker{call: c.newCall(), tally: t})
	}
	return workers
}

// awaitServer waits until conn is connected. It makes a call, because only a call returns why connecting failed.
func awaitServer(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded,
		codes.Canceled: // If the connection is ready, a server has answered with such a code.
		if conn.GetState() != connectivity.Ready {
			return err
		}
	}
	return nil
}

// newCall returns a function that makes one call at a time.
func (c *grpcConn) newCall() callFunc {
	pick := c.load.newPicker(c.cfg.Seed, len(c.load.messages))
	opts := []grpc.CallOption{grpc.ForceCodecV2(codec{})}
	var a answer
	return func(n uint64) (pb.RateLimitResponse_Code, error) {
		ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
		defer cancel()
		if c.cfg.FreshHeaders {
			for _, f := range FreshHeaders(n) {
				ctx = metadata.AppendToOutgoingContext(ctx, f.Name, f.Value)
			}
		}
		a.limits = &c.load.limits
		err := c.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, &c.load.messages[pick(n)], &a, opts...)
		return a.code, err
	}
}

// FreshHeaders returns the headers that only call n has: the trace context and the id of the request, as Envoy.
func FreshHeaders(n uint64) []hpack.HeaderField {
	var raw [32]byte
	source := rand.NewPCG(n, 0)
	for i := 0; i < len(raw); i += 8 {
		binary.BigEndian.PutUint64(raw[i:], source.Uint64())
	}
	digits := hex.EncodeToString(raw[:])
	return []hpack.HeaderField{
		{Name: "traceparent", Value: "00-" + digits[:32] + "-" + digits[32:48] + "-01"},
		{Name: "x-request-id", Value: digits[28:36] + "-" + digits[36:40] + "-4" + digits[40:43] + "-a" + digits[43:46] +
			"-" + digits[46:58]},
	}
}

// answer is what codec reads of a response.
type answer struct {
	code   pb.RateLimitResponse_Code
	limits *limitsSeen
}

// limitsSeen tells whether any answer names a limit. It looks at answers until one does.
type limitsSeen struct {
	isLimited atomic.Bool // an answer names a limit.
	isOpen    atomic.Bool // an answer has a descriptor, and names no limit.
}

func (l *limitsSeen) look(wire []byte) {
	if l.isLimited.Load() {
		return
	}
	switch descriptors, limited := namesLimit(wire); {
	case limited:
		l.isLimited.Store(true)
	case descriptors && !l.isOpen.Load():
		l.isOpen.Store(true)
	}
}

// namesLimit reports whether a RateLimitResponse has statuses of descriptors, and whether one of them has a
// current_limit, which a server sets if a limit applies.
func namesLimit(wire []byte) (descriptors, limited bool) {
	const statuses, currentLimit = 2<<3 | rls.BytesType, 2<<3 | rls.BytesType
	for response := (rls.Fields{Message: wire}); response.Next(); {
		if response.Tag != statuses {
			continue
		}
		descriptors = true
		for status := (rls.Fields{Message: response.Bytes}); status.Next(); {
			limited = limited || status.Tag == currentLimit
		}
	}
	return descriptors, limited
}

// codec sends a *mem.BufferSlice that is marshalled already, and reads of a response only what an answer has. Several
// calls may send the same message, because gRPC only reads it.
type codec struct{}

// Name is empty so that the content type is application/grpc, as Envoy sends it.
func (codec) Name() string { return "" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return *m, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*answer)
	if !ok {
		return fmt.Errorf("%T is no answer", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	var err error
	a.code, err = OverallCode(buf.ReadOnlyData())
	a.limits.look(buf.ReadOnlyData())
	return err
}

// OverallCode returns overall_code of a RateLimitResponse. It does not check the messages within the response.
func OverallCode(wire []byte) (code pb.RateLimitResponse_Code, _ error) {
	const overallCodeField = 1
	for len(wire) > 0 {
		field, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		wire = wire[n:]
		if n = protowire.ConsumeFieldValue(field, kind, wire); n < 0 {
			return 0, protowire.ParseError(n)
		}
		if field == overallCodeField && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(wire)
			code = pb.RateLimitResponse_Code(v) // If the field is repeated, the last value counts.
		}
		wire = wire[n:]
	}
	return code, nil
}
