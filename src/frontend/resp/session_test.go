package resp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/frontend/access"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
)

var conversations = []struct {
	name string
	cfg  Config
	talk []exchange
}{
	{name: "commands of a connection", talk: []exchange{
		{"PING", "+PONG"},
		{"ping hi", "$2 hi"},
		{"ECHO hi", "$2 hi"},
		{"ECHO", "-ERR wrong number of arguments for 'echo' command"},
		{"PING a b", "-ERR wrong number of arguments for 'ping' command"},
		{"SELECT 0", "+OK"},
		{"SELECT 1", "-ERR DB index is out of range: there is only 0"},
		{"CLIENT ID", ":1"},
		{"CLIENT GETNAME", "$-1"},
		{"CLIENT SETNAME me", "+OK"},
		{"CLIENT GETNAME", "$2 me"},
		{"CLIENT SETINFO LIB-NAME go-redis", "+OK"},
		{"CLIENT SETINFO lib-ver 9", "+OK"},
		{"CLIENT SETINFO X 9", `-ERR Unrecognized option "X"`},
		{"CLIENT SETNAME \x01", "-ERR a name has at most 128 bytes, and no spaces, newlines or special characters"},
		{"CLIENT LIST", "$92 id=1 addr=192.0.2.1:1000 name=me age=0 db=0 user=default lib-name=go-redis lib-ver=9 resp=2\n"},
		{"CLIENT KILL x", `-ERR unknown subcommand or wrong number of arguments for "KILL"; write GETNAME, ID, INFO, LIST, SETINFO or SETNAME`},
		{"QUIT", "+OK"},
	}},
	{name: "commands that there are not", talk: []exchange{
		{"GET foo", "-ERR unknown command 'GET', with args beginning with: 'foo' "},
		{"nothing", "-ERR unknown command 'nothing', with args beginning with: "},
		{strings.Repeat("x", 200), "-ERR unknown command '" + strings.Repeat("x", 128) + "', with args beginning with: "},
		{"MULTI", "-ERR MULTI is not supported: there are no transactions: each command is atomic, and commands that are " +
			"sent together are decided together"},
		{"exec", "-ERR EXEC is not supported: there are no transactions: each command is atomic, and commands that are " +
			"sent together are decided together"},
		{"SUBSCRIBE c", "-ERR SUBSCRIBE is not supported: there are no channels"},
		{"PING", "+PONG"},
	}},
	{name: "version 3", talk: []exchange{
		{"HELLO", "*14 $6 server $9 ratelimit $7 version $5 1.2.3 $5 proto :2 $2 id :1 $4 mode $10 standalone $4 role $6 " +
			"master $7 modules *0"},
		{"HELLO 4", "-NOPROTO unsupported protocol version; 2 and 3 are supported"},
		{"HELLO x", "-NOPROTO unsupported protocol version; 2 and 3 are supported"},
		{"CLIENT GETNAME", "$-1"},
		{"HELLO 3 SETNAME me", "%7 $6 server $9 ratelimit $7 version $5 1.2.3 $5 proto :3 $2 id :1 $4 mode $10 standalone " +
			"$4 role $6 master $7 modules *0"},
		{"CLIENT GETNAME", "$2 me"},
		{"HELLO 3 SETNAME", `-ERR Syntax error in HELLO option "SETNAME"`},
		{"COMMAND DOCS", "%0"},
		{"RATELIMIT api user a", "*5 :0 :5 :4 :-1 :3600"},
		{"HELLO 2", "*14 $6 server $9 ratelimit $7 version $5 1.2.3 $5 proto :2 $2 id :1 $4 mode $10 standalone $4 role $6 " +
			"master $7 modules *0"},
	}},
	{name: "the list of commands", talk: []exchange{
		{"COMMAND COUNT", ":14"},
		{"COMMAND DOCS GET", "*0"},
		{"COMMAND INFO GET ping", "*2 *-1 *6 $4 ping :-1 *1 +fast :0 :0 :0"},
		{"COMMAND INFO MULTI CL.THROTTLE", "*2 *-1 *6 $11 cl.throttle :-5 *2 +write +fast :1 :1 :1"},
		{"COMMAND X", `-ERR unknown subcommand "X"; write COUNT, DOCS, INFO or LIST`},
	}},
	{name: "limits of rules", talk: []exchange{
		{"RATELIMIT api user a", "*5 :0 :5 :4 :-1 :3600"},
		{"RATELIMIT api user a HITS 3", "*5 :0 :5 :1 :-1 :3600"},
		{"RATELIMIT api user a HITS 2 DRY", "*5 :1 :5 :0 :3600 :3600"},
		{"RATELIMIT api user a hits 0", "*5 :0 :5 :1 :-1 :3600"},
		{"RATELIMIT api user a HITS 2", "*5 :1 :5 :0 :3600 :3600"},
		{"RATELIMIT api user a HITS 4 REFUND", "*5 :0 :5 :3 :-1 :3600"},
		{"RATELIMIT api user a path login", "*5 :0 :2 :1 :-1 :30"},
		{"RATELIMIT api user a path login HITS 3", "*5 :1 :2 :1 :-1 :30"},
		{"RATELIMIT api banned a", "*5 :1 :0 :0 :-1 :86400"},
		{"RATELIMIT api free a", "*5 :0 :-1 :-1 :-1 :0"},
		{"RATELIMIT api unknown a", "*5 :0 :-1 :-1 :-1 :0"},
		{"RATELIMIT nothing a b", `-ERR no rules are loaded for the domain "nothing"`},
	}},
	{name: "an invalid request between others, which are decided", talk: []exchange{
		{"RATELIMIT api user a", "*5 :0 :5 :4 :-1 :3600"},
		{"RATELIMIT api job a", `-ERR bad request: descriptor 0: rule api.job: the entry id, which names the hold, is missing or empty: send id=<an id of the call>`},
		{"RATELIMIT api user a", "*5 :0 :5 :3 :-1 :3600"},
		{"RATELIMIT nothing a b", `-ERR no rules are loaded for the domain "nothing"`},
		{"CL.THROTTLE a 4 5 10", "*5 :0 :5 :4 :-1 :2"},
		{"CL.THROTTLE a 4 5 10", "*5 :0 :5 :3 :-1 :4"},
		{"RATELIMIT api user a", "*5 :0 :5 :2 :-1 :3600"},
	}},
	{name: "arguments of RATELIMIT", talk: []exchange{
		{"RATELIMIT api user", "-ERR wrong number of arguments for 'ratelimit' command"},
		{"RATELIMIT api user a path", `-ERR the key "path" has no value`},
		{"RATELIMIT api HITS 3", "*5 :0 :-1 :-1 :-1 :0"},
		{"RATELIMIT api user DRY", "*5 :0 :5 :4 :-1 :3600"},
		{"RATELIMIT api user a HITS", "-ERR HITS has no number"},
		{"RATELIMIT api user a HITS -1", `-ERR HITS "-1" is no number of 0 or more`},
		{"RATELIMIT api user a DRY path login", `-ERR unknown option "path"; write HITS n, REFUND or DRY`},
		{"RATELIMIT api user a REFUND DRY HITS 1", "*5 :0 :5 :5 :-1 :3600"},
	}},
	{name: "a tree of limits", talk: []exchange{
		{
			"RATELIMIT.TREE limits 1 user alex trade",
			"*2 *5 :0 :6 :5 :-1 :2 *2 *6 $9 user:alex :0 :16 :15 :-1 :2 *6 $15 user:alex:trade :0 :6 :5 :-1 :2",
		},
		{
			"RATELIMIT.TREE limits 5 user alex trade",
			"*2 *5 :0 :6 :0 :-1 :12 *2 *6 $9 user:alex :0 :16 :10 :-1 :12 *6 $15 user:alex:trade :0 :6 :0 :-1 :9",
		},
		{
			"RATELIMIT.TREE limits 1 user alex trade",
			"*2 *5 :1 :6 :0 :2 :14 *2 *6 $9 user:alex :0 :16 :9 :-1 :14 *6 $15 user:alex:trade :1 :6 :0 :2 :9",
		},
		{
			"RATELIMIT.TREE limits -6 user alex trade",
			"*2 *5 :0 :6 :6 :-1 :2 *2 *6 $9 user:alex :0 :16 :15 :-1 :2 *6 $15 user:alex:trade :0 :6 :6 :-1 :0",
		},
		{"RATELIMIT.TREE limits 0 user alex", "*2 *5 :0 :16 :15 :-1 :2 *1 *6 $9 user:alex :0 :16 :15 :-1 :2"},
		{"RATELIMIT.TREE limits 1 nobody", "*2 *5 :0 :-1 :-1 :-1 :0 *0"},
		{"RATELIMIT.TREE limits x user", "-ERR Couldn't parse as integer: x"},
		{"RATELIMIT.TREE api 1 user", `-ERR the rules of the domain "api" are no tree of limits; use RATELIMIT`},
		{"RATELIMIT.TREE none 1 user", `-ERR no rules are loaded for the domain "none"`},
	}},
	{name: "operators elsewhere", talk: []exchange{
		{"RATELIMIT.RESET api user a", "-NOPERM RATELIMIT.RESET is for operators: send it from the host of the service, or " +
			"set DEBUG_TOKEN and send that with AUTH"},
		{
			"RATELIMIT.EXPLAIN api user a",
			"-NOPERM RATELIMIT.EXPLAIN is for operators: send it from the host of the service, or set DEBUG_TOKEN and send " +
				"that with AUTH",
		},
		{"AUTH x", "-ERR AUTH <password> called without any password configured: set RESP_PASSWORD, or DEBUG_TOKEN for " +
			"operators"},
	}},
}

func TestConversations(t *testing.T) {
	t.Parallel()
	for _, tt := range conversations {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.Version = "1.2.3"
			converse(t, build(t, tt.cfg), elsewhere, tt.talk)
		})
	}
}

// A word of a tree and an argument may have any bytes.
func TestBytesOfArguments(t *testing.T) {
	t.Parallel()
	s := build(t, Config{})
	got := splitReplies(t, play(s, elsewhere,
		bulk("RATELIMIT", "api", "user", "a\r\nb\xff"), bulk("RATELIMIT", "api", "user", ""),
		bulk("RATELIMIT.TREE", "limits", "1", "user", "HITS:\x00"),
		bulk("RATELIMIT.TREE", "limits", "1", "user", ""), bulk("GET\r\n-X", "a\r\nb")))
	want := []string{
		"*5 :0 :5 :4 :-1 :3600", "*5 :0 :5 :4 :-1 :3600",
		"*2 *5 :0 :16 :15 :-1 :2 *1 *6 $11 user:HITS:\x00 :0 :16 :15 :-1 :2",
		"-ERR a word of the path is empty", "-ERR unknown command 'GET  -X', with args beginning with: 'a  b' ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// newAccess allows each client two wrong passwords.
func newAccess(t *testing.T, password, token string) Access {
	t.Helper()
	attempts, err := access.NewAttempts()
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		attempts.Add(elsewhere.String())
	}
	return Access{Passwords: access.Fixed(password), OperatorTokens: access.Fixed(token), Attempts: attempts}
}

// An explanation is the text of /explain, and changes nothing.
func TestExplain(t *testing.T) {
	t.Parallel()
	s := build(t, Config{})
	for hello, want := range map[string]string{"": "$", "HELLO 3\r\n": "txt:api: user=a\n"} {
		got := play(
			s, loopback, []byte(hello+"RATELIMIT.EXPLAIN api user a\r\nRATELIMIT.EXPLAIN api user a path\r\nPING\r\n"))
		for _, want := range []string{
			want, "charges 1 hit to counter api_user_a_\n    now 0 used, 5 left: passes",
			`-ERR the key "path" has no value`, "+PONG",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%sno %q in\n%s", hello, want, got)
			}
		}
	}
}

func TestAccess(t *testing.T) {
	t.Parallel()
	const denied, wrong = "-NOAUTH Authentication required.",
		"-WRONGPASS invalid username-password pair or user is disabled."
	reset := func(_ context.Context, c *operator.CounterChange, _ operator.Client) (*operator.CounterReport, error) {
		switch c.Domain {
		case "broken":
			return nil, errors.New("a secret of the store")
		case "none":
			return nil, operator.Refuse(http.StatusUnprocessableEntity, "no limit")
		case "lost":
			return &operator.CounterReport{Warning: "replicas may refuse"}, nil
		}
		return &operator.CounterReport{Counters: make([]operator.Counter, len(c.Descriptor))}, nil
	}
	resets := exchange{"RATELIMIT.RESET api user a", ":1"}
	for _, tt := range []struct {
		name            string
		password, token string
		addr            net.Addr
		talk            []exchange
	}{
		{"no password, on this host", "", "", loopback, []exchange{
			resets,
			{"RATELIMIT.RESET none user a", "-ERR no limit"},
			{"RATELIMIT.RESET lost user a", "-ERR replicas may refuse"},
			{"RATELIMIT.RESET broken user a", "-ERR the command failed; the log says why, at the level debug"},
			{"RATELIMIT.RESET api user a path", `-ERR the key "path" has no value`},
		}},
		{"a password", "secret", "", elsewhere, []exchange{
			{"PING", denied},
			{"GET x", denied},
			{"RATELIMIT api user a", denied},
			{"RATELIMIT.RESET api user a", denied},
			{"AUTH wrong", wrong},
			{"AUTH a b c", "-ERR wrong number of arguments for 'auth' command"},
			{"AUTH secret", "+OK"},
			{"RATELIMIT api user a", "*5 :0 :5 :4 :-1 :3600"},
			{"RATELIMIT.RESET api user a", "-NOPERM RATELIMIT.RESET is for operators: send it from the host of the service, " +
				"or set DEBUG_TOKEN and send that with AUTH"},
			{"AUTH wrong", wrong},
			{"AUTH secret", "-WRONGPASS too many wrong passwords came from this address; wait for 6s"},
			{"RATELIMIT api user a", "*5 :0 :5 :3 :-1 :3600"}, // A wrong password takes no rights.
		}},
		{"a token", "", "token", loopback, []exchange{
			{"RATELIMIT api user a", "*5 :0 :5 :4 :-1 :3600"},
			{"RATELIMIT.RESET api user a", "-NOPERM RATELIMIT.RESET is for operators: send AUTH with DEBUG_TOKEN first"},
			{"AUTH alice token", "+OK"},
			resets,
		}},
		{"HELLO", "secret", "token", elsewhere, []exchange{
			{"HELLO 3", "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH " +
				"<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"},
			{"HELLO 3 AUTH default wrong", wrong},
			{
				"HELLO 3 AUTH default secret",
				"%7 $6 server $9 ratelimit $7 version $5 0.0.0 $5 proto :3 $2 id :1 $4 mode $10 standalone $4 role $6 master $7 " +
					"modules *0",
			},
			{"PING", "+PONG"},
			{"AUTH token", "+OK"},
		}},
		{
			"an empty token opens nothing", "secret", "", elsewhere,
			[]exchange{{"AUTH", "-ERR wrong number of arguments for 'auth' command"}, {"AUTH default \x00", wrong}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			converse(t, build(t, Config{Access: newAccess(t, tt.password, tt.token), Reset: reset}), tt.addr, tt.talk)
		})
	}
}

// What a client may send before its password is small.
func TestBoundsBeforeAuth(t *testing.T) {
	t.Parallel()
	s := build(t, Config{Access: newAccess(t, "secret", "")})
	for _, tt := range []struct {
		input []byte
		want  string
	}{
		{bulk("AUTH", strings.Repeat("x", 2000)), "-ERR Protocol error: invalid bulk length; at most 1024 is allowed\r\n"},
		{
			bulk("A", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"),
			"-ERR Protocol error: invalid multibulk length; at most 10 is allowed\r\n",
		},
		{
			append(bulk("AUTH", "secret"), bulk("ECHO", strings.Repeat("x", 2000))...),
			"+OK\r\n$2000\r\n" + strings.Repeat("x", 2000) + "\r\n",
		},
	} {
		if got := play(s, elsewhere, tt.input); got != tt.want {
			t.Errorf("%.30q: got %.80q, want %.80q", tt.input, got, tt.want)
		}
	}
}

// Commands that arrive together are one call of the store, up to a bound.
func TestPipelineIsOneCall(t *testing.T) {
	t.Parallel()
	one := bulk("RATELIMIT", "api", "user", "a")
	three := slices.Concat(one, bulk("CL.THROTTLE", "a", "1", "1", "1"),
		bulk("RATELIMIT.TREE", "limits", "1", "user", "alex", "trade"))
	for _, tt := range []struct {
		name      string
		packets   [][]byte
		pipelined int
		want      int // the number of calls.
	}{
		{"three commands in a packet", [][]byte{three}, 0, 1},
		{"in two packets", [][]byte{three, one}, 0, 2},
		{"a hundred", [][]byte{slices.Repeat(one, 50)}, 0, 1},
		{"more than a batch has", [][]byte{slices.Repeat(one, 5)}, 2, 3},
		{"a command between them", [][]byte{slices.Concat(one, one, bulk("PING"), one)}, 0, 2},
		{"no rule", [][]byte{bulk("RATELIMIT", "api", "x", "y")}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := &counting{Backend: newStore(t)}
			l := limiter.New(limiter.Config{Backend: store})
			l.UseRules(loadRules(t))
			s := build(t, Config{Limiter: l, Config: pipeline.Config{MaxPipelined: tt.pipelined}})
			if play(s, elsewhere, tt.packets...); store.calls != tt.want {
				t.Errorf("%d calls, want %d", store.calls, tt.want)
			}
		})
	}
}

// failing is a store that never answers.
type failing struct{}

func (failing) Take(_ context.Context, b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i].Err = errors.New("10.0.0.1 is away")
	}
	return nil
}

func TestFailures(t *testing.T) {
	t.Parallel()
	failures := 0
	silent := limiter.New(limiter.Config{Backend: failing{}})
	silent.UseRules(loadRules(t))
	const away = "-ERR the store did not answer; the request may have been counted"
	cfg := Config{Limiter: silent}
	cfg.OnFailure = func(error) { failures++ }
	s := build(t, cfg)
	converse(t, s, elsewhere, []exchange{
		{"RATELIMIT api user a", away},
		{"CL.THROTTLE a 1 1 1", away},
		{"RATELIMIT.TREE limits 1 user a", away},
		{"RATELIMIT api user a DRY", away},
		{"RATELIMIT api other a", "*5 :0 :-1 :-1 :-1 :0"},
		{"PING", "+PONG"},
	})
	if st := s.Stats(); failures != 4 || st.ErrorReplies["ERR"] != 4 || st.Answered != 6 || st.Open != 0 {
		t.Errorf("%d failures, %+v", failures, st)
	}
	const loading = "-LOADING no rules are loaded yet"
	converse(t, build(t, Config{Limiter: limiter.New(limiter.Config{Backend: newStore(t)})}), elsewhere, []exchange{
		{"RATELIMIT api user a", loading},
		{"RATELIMIT api user a DRY", loading},
		{"RATELIMIT.TREE limits 1 user a", loading},
		{"CL.THROTTLE a 0 1 1", "*5 :0 :1 :0 :-1 :1"},
	})
	converse(t, build(t, Config{ThrottleRefusal: "not here"}), elsewhere,
		[]exchange{{"CL.THROTTLE a 1 1 1", "-ERR not here"}})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	l := limiter.New(limiter.Config{})
	for _, cfg := range []Config{
		{},
		{Limiter: l, Config: pipeline.Config{MaxInputBytes: 1023}},
		{Limiter: l, Config: pipeline.Config{MaxInputBytes: 1 << 30}},
		{Limiter: l, Config: pipeline.Config{MaxPipelined: -1}},
		{Limiter: l, Config: pipeline.Config{MaxPipelined: 1001}},
		{Limiter: l, Config: pipeline.Config{MaxConnections: -1}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is good", cfg)
		}
	}
}
