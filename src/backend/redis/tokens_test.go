package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// publish returns a function that writes tokens into a file in the form of a credential_process, and a program that
// prints the file.
func publish(t *testing.T) (write func(string, time.Time), line string) {
	file := filepath.Join(t.TempDir(), "token")
	return func(password string, ends time.Time) {
		text := fmt.Sprintf(`{"Version": 1, "AccessKeyId": %q, "SecretAccessKey": %q, "Expiration": %q}`,
			redistest.TokenUser, password, ends.Format(time.RFC3339Nano))
		if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Error(err)
		}
	}, "cat '" + file + "'"
}

// program returns a Source that runs a program.
func program(t *testing.T, line string, report func(credentials.Report)) credentials.Source {
	t.Helper()
	c, err := credentials.NewCommand(credentials.CommandConfig{Line: line, Environ: os.Environ(), OnReport: report})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// No call fails while tokens of 5 s expire and sessions of old tokens end: each connection sends AUTH in place.
func TestTokensRotateUnderLoad(t *testing.T) {
	t.Parallel()
	const connections, callers, rotations = 4, 8, 3
	server := redistest.Start(t, redistest.Options{})
	write, line := publish(t)
	tokens := redistest.StartTokens(t, server, 3*time.Second, 2*time.Second, write)
	s := open(t, Config{
		Addr: tokens.Addr, Credentials: program(t, line, nil), Config: remote.Config{Connections: connections},
	})
	harness.Await(t, 10*time.Second, "the first token", func() error { return s.Ping(t.Context()) })
	var failed, calls atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i := range callers {
		h := backend.Hit{Key: fmt.Appendf(nil, "k_%d_", i), Limit: window(1_000_000, time.Hour), Amount: 1}
		group.Go(func() {
			for ctx.Err() == nil {
				calls.Add(1)
				if v := send(t, s, h); v.Err != nil {
					failed.Add(1)
					t.Error(v.Err)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	harness.Await(t, 30*time.Second, "the rotations", func() error {
		if n := tokens.Counts().Rotations; n < rotations {
			return fmt.Errorf("%d rotations", n)
		}
		return nil
	})
	stop()
	group.Wait()
	counts := tokens.Counts()
	t.Logf("%d calls, %d failed: %+v", calls.Load(), failed.Load(), counts)
	if counts.Ended > 0 || counts.Sessions > connections+1 { // One is that of the ping.
		t.Errorf("connections did not live on: %+v", counts)
	}
	if counts.Auths < connections*rotations || counts.Auths > 3*connections*(rotations+1) {
		t.Errorf("%d AUTH", counts.Auths)
	}
}

// While the program fails, connections that open use the old token to its end, and those that are open live on. When it
// works again, so do new connections.
func TestTokenProgramFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Do(t, "ACL", "SETUSER", redistest.TokenUser, "reset", "on", "~*", "&*", "+@all", ">first", ">second")
	write, line := publish(t)
	end := time.Now().Add(4 * time.Second)
	write("first", end)
	var reports atomic.Pointer[credentials.Report]
	s := open(t, Config{
		Addr: server.Addr, Credentials: program(t, line, func(r credentials.Report) { reports.Store(&r) }),
		Config: remote.Config{Connections: 1},
	})
	h := backend.Hit{Key: []byte("k_"), Limit: window(1_000_000, time.Hour), Amount: 1}
	if v := send(t, s, h); v.Err != nil {
		t.Fatal(v.Err)
	}
	write("expired", time.Now().Add(-time.Hour)) // From now on the program gives nothing useful.
	harness.Await(t, 10*time.Second, "a failure", func() error {
		if r := reports.Load(); r.Err == nil {
			return errors.New("none yet")
		}
		return nil
	})
	if err := s.Ping(t.Context()); err != nil { // a new connection
		t.Errorf("before the end of the token: %v", err)
	}
	time.Sleep(time.Until(end))
	err := s.Ping(t.Context())
	if err == nil || (*protocol)(nil).CauseOf(err) != causeAuth {
		t.Errorf("after the end of the token: %v", err)
	}
	if v := send(t, s, h); v.Err != nil {
		t.Errorf("on the old connection: %v", v.Err)
	}
	write("second", time.Now().Add(time.Hour))
	harness.Await(t, 2*time.Minute, "the next token", func() error { return s.Ping(t.Context()) })
}

// A refused token is fetched again at once: a program that gives no end may change the password at any time.
func TestTokenIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	password := "first"
	set := func() {
		server.Do(t, "ACL", "SETUSER", redistest.TokenUser, "reset", "on", "~*", "&*", "+@all", ">"+password)
	}
	set()
	write, line := publish(t)
	write(password, time.Now().Add(time.Hour))
	s := open(t, Config{Addr: server.Addr, Credentials: program(t, line, nil), Config: remote.Config{Connections: 1}})
	harness.Await(t, 10*time.Second, "the first token", func() error { return s.Ping(t.Context()) })
	time.Sleep(1100 * time.Millisecond) // A refusal counts if the token is a second old.
	password = "second"
	set()
	write(password, time.Now().Add(time.Hour))
	server.Do(t, "CLIENT", "KILL", "USER", redistest.TokenUser)
	harness.Await(t, 10*time.Second, "the second token", func() error { return s.Ping(t.Context()) })
}

// A reply that quotes the password is in no error.
func TestQuotedPassword(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"ERR unknown command 'AUTH', with args beginning with: 'app' 'very-secret-tok": "redis: ERR the reply to AUTH quotes the " +
			"password, so it is not shown",
		"WRONGPASS invalid username-password pair or user is disabled.": "redis: WRONGPASS invalid username-password pair or user " +
			"is disabled.",
	} {
		if got := withoutSecret(Error(reply), "very-secret-token"); got.Error() != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

// Connections to sentinels, to a primary and to nodes of a cluster live on while their tokens are renewed in place.
func TestTokensOfTopologies(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t, redistest.SentinelOptions{
		Password: "secret", Server: redistest.Options{User: redistest.TokenUser, Password: "secret"},
	})
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{
		Server: redistest.Options{User: redistest.TokenUser, Password: "secret"},
	})
	renewing := func(user string) credentials.Source {
		file := filepath.Join(t.TempDir(), "token")
		harness.RunInBackground(t, func(ctx context.Context) error {
			for ctx.Err() == nil {
				text := fmt.Sprintf(`{"Version":1,"AccessKeyId":%q,"SecretAccessKey":"secret","Expiration":%q}`, user,
					time.Now().Add(4*time.Second).Format(time.RFC3339Nano))
				if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
					return err
				}
				time.Sleep(200 * time.Millisecond)
			}
			return nil
		})
		harness.Await(t, harness.Deadline, "the first token", func() error {
			_, err := os.Stat(file)
			return err
		})
		return program(t, "cat '"+file+"'", nil)
	}
	for name, tt := range map[string]struct {
		cfg     Config
		servers []*redistest.Server
	}{
		"Sentinel": {Config{
			Credentials: renewing(redistest.TokenUser),
			Sentinel: &Sentinel{
				Primary: set.PrimaryName, Addrs: set.SentinelAddrs, Credentials: renewing(""),
			},
		}, []*redistest.Server{set.Primary(t)}},
		"Cluster": {Config{Credentials: renewing(redistest.TokenUser), Cluster: cluster.Addrs}, cluster.Primaries(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.Connections = 1
			s := open(t, tt.cfg)
			charge := func() {
				for i := range 30 { // of all nodes
					h := backend.Hit{Key: fmt.Appendf(nil, "k_%d_", i), Limit: window(1_000_000, time.Hour), Amount: 1}
					if v := send(t, s, h); v.Err != nil {
						t.Fatal(v.Err)
					}
				}
			}
			charge()
			ids, auths := make([][]string, len(tt.servers)), make([]int, len(tt.servers))
			for i, server := range tt.servers {
				ids[i], auths[i] = clientFigures(t, server)
			}
			for started := time.Now(); time.Since(started) < 9*time.Second; time.Sleep(50 * time.Millisecond) {
				charge()
			}
			for i, server := range tt.servers {
				idsNow, authsNow := clientFigures(t, server)
				if len(ids[i]) == 0 || !slices.Equal(idsNow, ids[i]) || authsNow < auths[i]+4 { // Two are those of this test.
					t.Errorf("%s: connections %q became %q, AUTH %d became %d", server.Addr, ids[i], idsNow, auths[i], authsNow)
				}
			}
		})
	}
}

// clientFigures returns the ids of the connections of TokenUser, and how often AUTH was sent.
func clientFigures(t *testing.T, s *redistest.Server) (ids []string, auths int) {
	t.Helper()
	for line := range strings.Lines(fmt.Sprint(s.Do(t, "CLIENT", "LIST"))) {
		if id, _, _ := strings.Cut(line, " "); strings.Contains(line, " user="+redistest.TokenUser+" ") {
			ids = append(ids, id)
		}
	}
	if _, err := fmt.Sscanf(s.Info(t, "commandstats")["cmdstat_auth"], "calls=%d,", &auths); err != nil {
		t.Fatal(err)
	}
	return ids, auths
}
