package h2

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestSmoke(t *testing.T) {
	g := grpc.NewServer()
	healthpb.RegisterHealthServer(g, health.NewServer())
	s := NewServer(Config{
		Path: "/grpc.health.v1.Health/Check2",
		Decide: func(b *Batch) {
			for i := range b.Calls {
				b.Reply(i, []byte{8, 1})
			}
		},
		Handler: g,
	})
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	go s.Serve(l)
	cc, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for range 3 {
		var r healthpb.HealthCheckResponse
		if err := cc.Invoke(ctx, "/grpc.health.v1.Health/Check2", &healthpb.HealthCheckRequest{Service: "xx"}, &r); err != nil {
			t.Fatal(err)
		}
		r.Reset()
		if err := cc.Invoke(ctx, "/grpc.health.v1.Health/Check", &healthpb.HealthCheckRequest{}, &r); err != nil {
			t.Fatal(err)
		}
		t.Log(r.String())
	}
	s.Shutdown(ctx)
}
