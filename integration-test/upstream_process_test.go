package integration

import (
	"errors"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// How the process starts and what it offers, where it is not as the original.
func TestUpstreamProcess(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}\n")
	u := startWith(t, rules,
		"RUNTIME_ROOT="+filepath.Dir(rules.files), "RUNTIME_SUBDIRECTORY=",
		"LOG_LEVEL=error", "DEBUG_PPROF=false", "GRPC_REFLECTION=true",
	)
	t.Run("differs: an empty RUNTIME_SUBDIRECTORY works", func(t *testing.T) {
		u.runStep(t, "grpc", "d", 1, step{ask: "a", want: "OK 9/10 YEAR"})
	})
	t.Run("differs: the listening lines and one ready line are printed whatever LOG_LEVEL says", func(t *testing.T) {
		log := u.log(t)
		for _, words := range []string{"port=http", "port=grpc", "port=debug", "msg=ready", "store=memory"} {
			if !strings.Contains(log, words) {
				t.Errorf("there is no %s in\n%s", words, log)
			}
		}
	})
	t.Run("differs: DEBUG_PPROF=false turns pprof off", func(t *testing.T) {
		if page, err := get("http://" + u.debug + "/debug/pprof/"); err == nil ||
			!strings.Contains(err.Error(), "404 Not Found") {
			t.Errorf("%v\n%s", err, page)
		}
	})
	t.Run("differs: GRPC_REFLECTION=true offers reflection", func(t *testing.T) {
		stream, err := reflectionpb.NewServerReflectionClient(u.conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
		if err := errors.Join(stream.Send(ask), stream.CloseSend()); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range answer.GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		if all := strings.Join(names, " "); !strings.Contains(all, "envoy.service.ratelimit.v3.RateLimitService") ||
			strings.Contains(all, ".v2.") {
			t.Errorf("the services are %s", all)
		}
	})
	t.Run("differs: a second start on the same port fails", func(t *testing.T) {
		_, port, err := net.SplitHostPort(u.service.http)
		if err != nil {
			t.Fatal(err)
		}
		out, err := serviceCommand(t, append(rules.env(), "PORT="+port)...).CombinedOutput()
		if exit := new(exec.ExitError); !errors.As(err, &exit) || !strings.Contains(string(out), port) {
			t.Errorf("it ended with %v:\n%s", err, out)
		}
	})

	u = startWith(t, rules, "LIMIT_RESPONSE_HEADERS_ENABLED=", "NEAR_LIMIT_RATIO=", "SHADOW_MODE=",
		"STATS_FLUSH_INTERVAL=")
	t.Run("differs: a set-but-empty number or bool means its default, with a warning", func(t *testing.T) {
		u.runStep(t, "grpc", "d", 1, step{
			ask: "a [hits 9]", want: "OK 1/10 YEAR",
			counts: "a: total_hits 9, within_limit 9, near_limit 1",
		})
		u.runStep(t, "grpc", "d", 2, step{ask: "a [hits 9]", want: "OVER_LIMIT 0/10 YEAR"})
		for _, name := range []string{
			"LIMIT_RESPONSE_HEADERS_ENABLED", "NEAR_LIMIT_RATIO", "SHADOW_MODE",
			"STATS_FLUSH_INTERVAL",
		} {
			if !strings.Contains(u.log(t), name) {
				t.Errorf("no warning names %s", name)
			}
		}
		if status, _ := u.healthcheck(t); status != http.StatusOK {
			t.Errorf("/healthcheck: %d", status)
		}
	})
}
