package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/h2"
	"ratelimit/testbed/harness"
)

// interopCase is one test of grpc-go's interop client.
type interopCase struct {
	name string
	run  func(context.Context, *grpc.ClientConn)
}

func ofTestService(f func(context.Context, testpb.TestServiceClient,
	...grpc.CallOption),
) func(context.Context, *grpc.ClientConn) {
	return func(ctx context.Context, cc *grpc.ClientConn) { f(ctx, testpb.NewTestServiceClient(cc)) }
}

// interopCases are all that need no special credentials and no load reports. The last ones need the handler.
var interopCases = []interopCase{
	{"empty_unary", ofTestService(interop.DoEmptyUnaryCall)},
	{"large_unary", ofTestService(interop.DoLargeUnaryCall)},
	{"status_code_and_message", ofTestService(interop.DoStatusCodeAndMessage)},
	{"special_status_message", ofTestService(interop.DoSpecialStatusMessage)},
	{"unimplemented_method", interop.DoUnimplementedMethod},
	{"unimplemented_service", func(ctx context.Context, cc *grpc.ClientConn) {
		interop.DoUnimplementedService(ctx, testpb.NewUnimplementedServiceClient(cc))
	}},
	{"timeout_on_sleeping_server", ofTestService(interop.DoTimeoutOnSleepingServer)},
	{"cancel_after_begin", ofTestService(interop.DoCancelAfterBegin)},
	{"cancel_after_first_response", ofTestService(interop.DoCancelAfterFirstResponse)},
	{"client_streaming", ofTestService(interop.DoClientStreaming)},
	{"server_streaming", ofTestService(interop.DoServerStreaming)},
	{"ping_pong", ofTestService(interop.DoPingPong)},
	{"empty_stream", ofTestService(interop.DoEmptyStream)},
	{needsMetadata, ofTestService(interop.DoCustomMetadata)},
}

// needsMetadata is the case that Decide cannot answer, because it gets no metadata.
const needsMetadata = "custom_metadata"

// runInteropClient runs the cases that args name, after the address of the server. A case that fails ends the process.
func runInteropClient(args []string) error {
	cc, err := grpc.NewClient(args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range args[1:] {
		for _, c := range interopCases {
			if c.name == name {
				c.run(ctx, cc)
				fmt.Println(name)
			}
		}
	}
	return cc.Close()
}

// TestInterop runs the interop cases of grpc-go.
func TestInterop(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  h2.Config
	}{
		{"handled", h2.Config{}},
		{"UnaryCall decided", h2.Config{Path: testpb.TestService_UnaryCall_FullMethodName, Decide: decideUnaryCalls}},
		{"UnaryCall decided by a slow store", h2.Config{
			Path: testpb.TestService_UnaryCall_FullMethodName, Decide: decideUnaryCalls, DecideWaits: true,
		}},
		{"EmptyCall decided", h2.Config{Path: testpb.TestService_EmptyCall_FullMethodName, Decide: decideEmptyCalls}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := newGRPC()
			testpb.RegisterTestServiceServer(g, interop.NewTestServer())
			handle(&test.cfg, g)
			args := []string{"interop-client", serve(t, test.cfg)}
			for _, c := range interopCases {
				if c.name != needsMetadata || test.cfg.Path != testpb.TestService_UnaryCall_FullMethodName {
					args = append(args, c.name)
				}
			}
			client := exec.CommandContext(t.Context(), os.Args[0], args...)
			var stderr strings.Builder
			client.Stderr = &stderr
			passed, err := client.Output()
			if want := strings.Join(args[2:], "\n") + "\n"; err != nil || string(passed) != want {
				t.Errorf("the client ended with %v; these cases passed: %q, want %q\n%s", err, passed, want, &stderr)
			}
		})
	}
}

// serve starts a server for the time of the test, and returns its address.
func serve(t *testing.T, cfg h2.Config) string {
	l := harness.Listen(t)
	s := newServer(cfg, t.Errorf)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// decideUnaryCalls answers each call as the interop server would, without metadata.
func decideUnaryCalls(b *h2.Batch) {
	for i := range b.Calls {
		request := new(testpb.SimpleRequest)
		if err := proto.Unmarshal(b.Calls[i].Message, request); err != nil {
			b.Fail(i, int(codes.Internal), err.Error())
			continue
		}
		answer, err := interop.NewTestServer().UnaryCall(b.Context(), request)
		if err != nil {
			s := status.Convert(err)
			b.Fail(i, int(s.Code()), s.Message())
			continue
		}
		message, _ := proto.Marshal(answer) // An answer has no text that could be malformed.
		b.Reply(i, message)
	}
}

// decideEmptyCalls answers each call with an empty message.
func decideEmptyCalls(b *h2.Batch) {
	for i := range b.Calls {
		if n := len(b.Calls[i].Message); n > 0 {
			b.Fail(i, int(codes.Internal), fmt.Sprintf("the message has %d bytes, want 0", n))
			continue
		}
		b.Reply(i, nil)
	}
}
