package counter

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
)

// Of several replicas, the first that answers is asked, and named. If each has its own counters, the user must choose.
func TestAnyReplica(t *testing.T) {
	t.Parallel()
	closed := harness.Listen(t)
	_ = closed.Close() // Nothing listens there.
	for store, want := range map[string]string{"redis": "", "memory": "name one replica with --address"} {
		changes := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api/state" {
				_, _ = io.WriteString(w, `{"store":"`+store+`"}`) // A failed write fails the command.
				return
			}
			changes++
			_, _ = io.WriteString(w, `{"action":"get","domain":"d"}`)
		}))
		opt := options{}
		cmd := opt.command()
		var out, said bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&said)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		address := server.Listener.Addr().String()
		cmd.SetArgs([]string{"get", "d", "user=alex", "--address", closed.Addr().String() + "," + address})
		err := cmd.ExecuteContext(t.Context())
		server.Close()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", store, err, want)
		}
		if said.String() != address+" answers, the first of 2 replicas\n" || (changes == 1) != (want == "") {
			t.Errorf("%s: %d changes, it says %s", store, changes, said.String())
		}
	}
}
