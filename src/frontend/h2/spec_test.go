package h2

import (
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestServeSpec(t *testing.T) {
	if os.Getenv("H2SPEC") == "" {
		t.Skip()
	}
	g := grpc.NewServer()
	healthpb.RegisterHealthServer(g, health.NewServer())
	s := NewServer(Config{
		Path: "/a/B",
		Decide: func(b *Batch) {
			for i := range b.Calls {
				b.Reply(i, []byte{8, 1})
			}
		},
		Handler:         g,
		OnProtocolError: func(a net.Addr, err error) { t.Log(a, err) },
	})
	l, _ := net.Listen("tcp", "127.0.0.1:50099")
	go s.Serve(l)
	time.Sleep(100 * time.Second)
}
