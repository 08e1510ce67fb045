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
			err := &replyError{codeERR, name + " is not supported: " + refused.reason}
			commandsByName[name] = &command{
				name: name, arity: -1, needs: mayAsk,
				run: func(*session, *batch, [][]byte) *replyError { return err },
			}
		}
	}
	return commandsByName
}

func (b *batch) writeOK() { b.replies.WriteString("+OK\r\n") }

func runPing(_ *session, b *batch, args [][]byte) *replyError {
	switch len(args) {
	case 1:
		b.replies.WriteString("+PONG\r\n")
	case 2:
		b.replies.Write(appendBulk(b.replies.AvailableBuffer(), args[1]))
	default:
		return errArity("PING")
	}
	return nil
}

func runEcho(_ *session, b *batch, args [][]byte) *replyError {
	b.replies.Write(appendBulk(b.replies.AvailableBuffer(), args[1]))
	return nil
}

func runQuit(s *session, b *batch, _ [][]byte) *replyError {
	s.isEnding = true
	b.writeOK()
	return nil
}

// runSelect accepts the only database, which clients may choose explicitly.
func runSelect(_ *session, b *batch, args [][]byte) *replyError {
	if n, ok := parseInteger(args[1]); !ok || n != 0 {
		return &replyError{codeERR, "DB index is out of range: there is only 0"}
	}
	b.writeOK()
	return nil
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
	b.writeOK()
	return nil
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
	isRESP3, name, setsName := s.isRESP3, "", false
	if len(args) > 1 {
		version, ok := parseInteger(args[1])
		if !ok || version != 2 && version != 3 {
			return &replyError{codeNoProto, "unsupported protocol version; 2 and 3 are supported"}
		}
		isRESP3 = version == 3
	}
	for rest := args[min(2, len(args)):]; len(rest) > 0; {
		switch option := string(bytes.ToUpper(rest[0])); {
		case option == "AUTH" && len(rest) >= 3:
			if err := s.authenticate(string(rest[1]), rest[2]); err != nil {
				return err
			}
			rest = rest[3:]
		case option == "SETNAME" && len(rest) >= 2:
			var err *replyError
			if name, err = clientText(rest[1]); err != nil {
				return err
			}
			setsName, rest = true, rest[2:]
		default:
			return &replyError{codeERR, "Syntax error in HELLO option " + quoted(rest[0])}
		}
	}
	if s.rights == mayAuthenticate {
		return &replyError{codeNoAuth, "HELLO must be called with the client already authenticated, otherwise the HELLO " +
			"<proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at " +
			"the same time"}
	}
	if s.isRESP3 = isRESP3; setsName {
		s.name = name
	}
	version := int64(2)
	if isRESP3 {
		version = 3
	}
	dst := appendMap(b.replies.AvailableBuffer(), isRESP3, 7)
	dst = appendBulk(appendBulk(dst, "server"), "ratelimit")
	dst = appendBulk(appendBulk(dst, "version"), s.srv.version())
	dst = appendInteger(appendBulk(dst, "proto"), version)
	dst = appendInteger(appendBulk(dst, "id"), int64(s.id))
	dst = appendBulk(appendBulk(dst, "mode"), "standalone")
	dst = appendBulk(appendBulk(dst, "role"), "master")
	b.replies.Write(appendArray(appendBulk(dst, "modules"), 0))
	return nil
}

func (s *Server) version() string { return cmp.Or(s.cfg.Version, "0.0.0") }

// clientText returns a text by which a client calls itself. As in Redis, it has no blanks and no unusual characters.
func clientText(arg []byte) (string, *replyError) {
	if len(arg) > maxClientTextBytes || bytes.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", &replyError{
			codeERR,
			fmt.Sprintf("a name has at most %d bytes, and no spaces, newlines or special characters", maxClientTextBytes),
		}
	}
	return string(arg), nil
}

// runClient is CLIENT GETNAME, ID, INFO, LIST, SETINFO and SETNAME. LIST has only the connection itself: a client
// learns nothing about others.
func runClient(s *session, b *batch, args [][]byte) *replyError {
	dst := b.replies.AvailableBuffer()
	switch sub := string(bytes.ToUpper(args[1])); {
	case sub == "ID" && len(args) == 2:
		dst = appendInteger(dst, int64(s.id))
	case sub == "GETNAME" && len(args) == 2 && s.name == "":
		dst = appendNull(dst, s.isRESP3)
	case sub == "GETNAME" && len(args) == 2:
		dst = appendBulk(dst, s.name)
	case sub == "INFO" && len(args) == 2, sub == "LIST":
		dst = appendText(dst, s.isRESP3, s.describe())
	case sub == "SETNAME" && len(args) == 3:
		name, err := clientText(args[2])
		if err != nil {
			return err
		}
		s.name = name
		dst = appendSimple(dst, "OK")
	case sub == "SETINFO" && len(args) == 4:
		field := map[string]*string{"LIB-NAME": &s.libName, "LIB-VER": &s.libVersion}[string(bytes.ToUpper(args[2]))]
		if field == nil {
			return &replyError{codeERR, "Unrecognized option " + quoted(args[2])}
		}
		text, err := clientText(args[3])
		if err != nil {
			return err
		}
		*field = text
		dst = appendSimple(dst, "OK")
	default:
		return &replyError{codeERR, fmt.Sprintf("unknown subcommand or wrong number of arguments for %s; write GETNAME, "+
			"ID, INFO, LIST, SETINFO or SETNAME", quoted(args[1]))}
	}
	b.replies.Write(dst)
	return nil
}

// describe returns the line of CLIENT LIST for the connection.
func (s *session) describe() string {
	protocol := 2
	if s.isRESP3 {
		protocol = 3
	}
	return fmt.Sprintf("id=%d addr=%v name=%s age=%d db=0 user=%s lib-name=%s lib-ver=%s resp=%d\n",
		s.id, s.client, s.name, int(time.Since(s.since).Seconds()), cmp.Or(s.user, "default"), s.libName, s.libVersion,
		protocol)
}

// runCommand is COMMAND, and its subcommands COUNT, DOCS, INFO and LIST.
func runCommand(s *session, b *batch, args [][]byte) *replyError {
	dst := b.replies.AvailableBuffer()
	sub := ""
	if len(args) > 1 {
		sub = string(bytes.ToUpper(args[1]))
	}
	switch sub {
	case "":
		dst = appendArray(dst, len(s.srv.commandList))
		for _, c := range s.srv.commandList {
			dst = c.appendInfo(dst)
		}
	case "INFO":
		dst = appendArray(dst, len(args)-2)
		for _, name := range args[2:] {
			if c := s.srv.findCommand(name); c != nil && slices.Contains(s.srv.commandList, c) {
				dst = c.appendInfo(dst)
			} else {
				dst = append(dst, "*-1\r\n"...)
			}
		}
	case "LIST":
		dst = appendArray(dst, len(s.srv.commandList))
		for _, c := range s.srv.commandList {
			dst = appendBulk(dst, strings.ToLower(c.name))
		}
	case "COUNT":
		dst = appendInteger(dst, int64(len(s.srv.commandList)))
	case "DOCS": // redis-cli asks for hints.
		dst = appendMap(dst, s.isRESP3, 0)
	default:
		return &replyError{codeERR, "unknown subcommand " + quoted(args[1]) + "; write COUNT, DOCS, INFO or LIST"}
	}
	b.replies.Write(dst)
	return nil
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
	for range 3 {
		dst = appendInteger(dst, key)
	}
	return dst
}

// runInfo is INFO. It ignores the names of sections.
func runInfo(s *session, b *batch, _ [][]byte) *replyError {
	st := s.srv.Stats()
	text := fmt.Sprintf("# Server\r\nratelimit_version:%s\r\nprocess_id:%d\r\nuptime_in_seconds:%d\r\n\r\n"+
		"# Clients\r\nconnected_clients:%d\r\n\r\n"+
		"# Stats\r\ntotal_connections_received:%d\r\ntotal_commands_processed:%d\r\nrejected_connections:%d\r\n",
		s.srv.version(), os.Getpid(), int(time.Since(s.srv.started).Seconds()), st.Open, st.Accepted, st.Commands, st.Refused)
	b.replies.Write(appendText(b.replies.AvailableBuffer(), s.isRESP3, text))
	return nil
}
