package resp

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const maxNameBytes = 32

// newCommandList returns all commands in the order of their names. COMMAND tells them.
func newCommandList() []*command {
	return []*command{
		{name: "AUTH", arity: -2, flags: []string{"noscript", "fast", "no_auth"}, run: runAuth},
		{name: "CL.THROTTLE", arity: -5, needs: mayAsk, flags: []string{"write", "fast"}, run: runThrottle, isDecided: true},
		{name: "CLIENT", arity: -2, needs: mayAsk, flags: []string{"noscript"}, run: runClient},
		{name: "COMMAND", arity: -1, needs: mayAsk, flags: []string{"loading"}, run: runCommand},
		{name: "ECHO", arity: 2, needs: mayAsk, flags: []string{"fast"}, run: runEcho},
		{name: "HELLO", arity: -1, flags: []string{"noscript", "fast", "no_auth"}, run: runHello},
		{name: "INFO", arity: -1, needs: mayAsk, flags: []string{"loading"}, run: runInfo},
		{name: "PING", arity: -1, needs: mayAsk, flags: []string{"fast"}, run: runPing},
		{name: "QUIT", arity: -1, flags: []string{"noscript", "fast", "no_auth"}, run: runQuit},
		{name: "RATELIMIT", arity: -4, needs: mayAsk, flags: []string{"write", "fast"}, run: runRateLimit, isDecided: true},
		{name: "RATELIMIT.EXPLAIN", arity: -4, needs: mayOperate, flags: []string{"readonly", "admin"}, run: runExplain},
		{name: "RATELIMIT.RESET", arity: -4, needs: mayOperate, flags: []string{"write", "admin"}, run: runReset},
		{name: "RATELIMIT.TREE", arity: -4, needs: mayAsk, flags: []string{"write", "fast"}, run: runTree, isDecided: true},
		{name: "SELECT", arity: 2, needs: mayAsk, flags: []string{"fast"}, run: runSelect},
	}
}

// refusedCommands are commands that clients expect of every Redis, with the reason why there are none.
var refusedCommands = []struct{ reason, names string }{
	{
		"there are no transactions: each command is atomic, and commands that are sent together are decided together",
		"MULTI EXEC DISCARD WATCH UNWATCH",
	},
	{"there are no channels", "SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE PUBLISH SPUBLISH " +
		"PUBSUB MONITOR"},
}

// indexCommands returns list and the refused commands by their names.
func indexCommands(list []*command) map[string]*command {
	commandsByName := make(map[string]*command)
	for _, c := range list {
		commandsByName[c.name] = c
	}
	for _, refused := range refusedCommands {
		for name := range strings.FieldsSeq(refused.names) {
			err := errorf("%s is not supported: %s", name, refused.reason)
			commandsByName[name] = &command{
				name: name, arity: -1, needs: mayAsk,
				run: func(*session, *batch, [][]byte) *replyError { return err },
			}
		}
	}
	return commandsByName
}

func runPing(_ *session, b *batch, args [][]byte) *replyError {
	switch len(args) {
	case 1:
		return b.reply(appendSimple(b.buffer(), "PONG"))
	case 2:
		return b.reply(appendBulk(b.buffer(), args[1]))
	}
	return errArity("PING")
}

func runEcho(_ *session, b *batch, args [][]byte) *replyError {
	return b.reply(appendBulk(b.buffer(), args[1]))
}

func runQuit(s *session, b *batch, _ [][]byte) *replyError {
	s.isEnding = true
	return b.reply(appendOK(b.buffer()))
}

// runSelect accepts the only database, which clients may choose explicitly.
func runSelect(_ *session, b *batch, args [][]byte) *replyError {
	if n, ok := parseInteger(args[1]); !ok || n != 0 {
		return errorf("DB index is out of range: there is only 0")
	}
	return b.reply(appendOK(b.buffer()))
}

// runAuth is AUTH [user] password.
func runAuth(s *session, b *batch, args [][]byte) *replyError {
	if len(args) > 3 {
		return errArity("AUTH")
	}
	user := "default"
	if len(args) == 3 {
		user = string(args[1])
	}
	if err := s.authenticate(user, args[len(args)-1]); err != nil {
		return err
	}
	return b.reply(appendOK(b.buffer()))
}

func (s *session) authenticate(user string, password []byte) *replyError {
	granted, err := s.srv.cfg.authenticate(s.client, password)
	if err != nil {
		return err
	}
	s.rights, s.user = granted, strings.ToValidUTF8(user[:min(len(user), maxUserBytes)], "\uFFFD")
	return nil
}

// maxUserBytes and maxClientTextBytes bound what a connection remembers of its client.
const (
	maxUserBytes       = 64
	maxClientTextBytes = 128
)

// runHello is HELLO [version [AUTH user password] [SETNAME name]].
func runHello(s *session, b *batch, args [][]byte) *replyError {
	version, name := int64(s.version), s.name
	if len(args) > 1 {
		var ok bool
		if version, ok = parseInteger(args[1]); !ok || version != 2 && version != 3 {
			return &replyError{codeNoProto, "unsupported protocol version; 2 and 3 are supported"}
		}
	}
	for rest := args[min(2, len(args)):]; len(rest) > 0; {
		var err *replyError
		switch option := string(bytes.ToUpper(rest[0])); {
		case option == "AUTH" && len(rest) >= 3:
			err, rest = s.authenticate(string(rest[1]), rest[2]), rest[3:]
		case option == "SETNAME" && len(rest) >= 2:
			name, err = clientText(rest[1])
			rest = rest[2:]
		default:
			err = errorf("Syntax error in HELLO option %.64q", rest[0])
		}
		if err != nil {
			return err
		}
	}
	if s.rights == mayAuthenticate {
		return &replyError{codeNoAuth, "HELLO must be called with the client already authenticated, otherwise the HELLO " +
			"<proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at " +
			"the same time"}
	}
	s.version, s.name = int(version), name
	dst := appendMap(b.buffer(), s.version, 7)
	dst = appendBulk(appendBulk(dst, "server"), "ratelimit")
	dst = appendBulk(appendBulk(dst, "version"), s.srv.cfg.Version)
	dst = appendInteger(appendBulk(dst, "proto"), version)
	dst = appendInteger(appendBulk(dst, "id"), int64(s.id))
	dst = appendBulk(appendBulk(dst, "mode"), "standalone")
	dst = appendBulk(appendBulk(dst, "role"), "master")
	return b.reply(appendArray(appendBulk(dst, "modules"), 0))
}

// clientText returns a text by which a client calls itself. As in Redis, it has no blanks and no unusual characters.
func clientText(arg []byte) (string, *replyError) {
	if len(arg) > maxClientTextBytes || bytes.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errorf("a name has at most %d bytes, and no spaces, newlines or special characters", maxClientTextBytes)
	}
	return string(arg), nil
}

// runClient is CLIENT GETNAME, ID, INFO, LIST, SETINFO and SETNAME. LIST has only the connection itself: a client
// learns nothing about others.
func runClient(s *session, b *batch, args [][]byte) *replyError {
	switch sub := string(bytes.ToUpper(args[1])); {
	case sub == "ID" && len(args) == 2:
		return b.reply(appendInteger(b.buffer(), int64(s.id)))
	case sub == "GETNAME" && len(args) == 2 && s.name == "":
		return b.reply(appendNull(b.buffer(), s.version))
	case sub == "GETNAME" && len(args) == 2:
		return b.reply(appendBulk(b.buffer(), s.name))
	case sub == "INFO" && len(args) == 2, sub == "LIST":
		return b.reply(appendText(b.buffer(), s.version, s.describe()))
	case sub == "SETNAME" && len(args) == 3:
		return b.setText(&s.name, args[2])
	case sub == "SETINFO" && len(args) == 4:
		field := map[string]*string{"LIB-NAME": &s.libName, "LIB-VER": &s.libVersion}[string(bytes.ToUpper(args[2]))]
		if field == nil {
			return errorf("Unrecognized option %.64q", args[2])
		}
		return b.setText(field, args[3])
	}
	return errorf("unknown subcommand or wrong number of arguments for %.64q; write GETNAME, ID, INFO, LIST, SETINFO or "+
		"SETNAME", args[1])
}

// setText sets a text by which a client calls itself.
func (b *batch) setText(field *string, arg []byte) *replyError {
	text, err := clientText(arg)
	if err != nil {
		return err
	}
	*field = text
	return b.reply(appendOK(b.buffer()))
}

// describe returns the line of CLIENT LIST for the connection.
func (s *session) describe() string {
	return fmt.Sprintf("id=%d addr=%v name=%s age=%d db=0 user=%s lib-name=%s lib-ver=%s resp=%d\n",
		s.id, s.client, s.name, int(time.Since(s.since).Seconds()), cmp.Or(s.user, "default"), s.libName, s.libVersion,
		s.version)
}

// runCommand is COMMAND, and its subcommands COUNT, DOCS, INFO and LIST.
func runCommand(s *session, b *batch, args [][]byte) *replyError {
	sub, list, dst := "", s.srv.commandList, b.buffer()
	if len(args) > 1 {
		sub = string(bytes.ToUpper(args[1]))
	}
	switch sub {
	case "":
		dst = appendArray(dst, len(list))
		for _, c := range list {
			dst = c.appendInfo(dst)
		}
	case "INFO":
		dst = appendArray(dst, len(args)-2)
		for _, name := range args[2:] {
			if c := s.srv.findCommand(name); slices.Contains(list, c) {
				dst = c.appendInfo(dst)
			} else {
				dst = append(dst, "*-1\r\n"...)
			}
		}
	case "LIST":
		dst = appendArray(dst, len(list))
		for _, c := range list {
			dst = appendBulk(dst, strings.ToLower(c.name))
		}
	case "COUNT":
		dst = appendInteger(dst, int64(len(list)))
	case "DOCS": // redis-cli asks for hints.
		dst = appendMap(dst, s.version, 0)
	default:
		return errorf("unknown subcommand %.64q; write COUNT, DOCS, INFO or LIST", args[1])
	}
	return b.reply(dst)
}

// appendInfo appends name, arity, flags, and the places of keys. Only CL.THROTTLE has one.
func (c *command) appendInfo(dst []byte) []byte {
	dst = appendBulk(appendArray(dst, 6), strings.ToLower(c.name))
	dst = appendArray(appendInteger(dst, int64(c.arity)), len(c.flags))
	for _, flag := range c.flags {
		dst = appendSimple(dst, flag)
	}
	key := int64(0)
	if c.name == "CL.THROTTLE" {
		key = 1
	}
	return appendInteger(appendInteger(appendInteger(dst, key), key), key)
}

// runInfo is INFO. It ignores the names of sections.
func runInfo(s *session, b *batch, _ [][]byte) *replyError {
	st := s.srv.Stats()
	text := fmt.Sprintf("# Server\r\nratelimit_version:%s\r\nprocess_id:%d\r\nuptime_in_seconds:%d\r\n\r\n"+
		"# Clients\r\nconnected_clients:%d\r\n\r\n"+
		"# Stats\r\ntotal_connections_received:%d\r\ntotal_commands_processed:%d\r\nrejected_connections:%d\r\n",
		s.srv.cfg.Version, os.Getpid(), int(time.Since(s.srv.started).Seconds()), st.Open, st.Accepted, st.Answered,
		st.Refused)
	return b.reply(appendText(b.buffer(), s.version, text))
}
