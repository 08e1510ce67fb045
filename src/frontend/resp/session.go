package resp

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"ratelimit/src/frontend/pipeline"
)

// session answers the commands of one connection.
type session struct {
	srv                       *Server
	parser                    parser
	client                    net.Addr
	id                        uint64
	since                     time.Time
	rights                    rights
	user                      string // the name that AUTH sent.
	version                   int    // of the protocol: 2, or 3 if HELLO has chosen it.
	name, libName, libVersion string
	isEnding                  bool // set by QUIT.
	// lastName and lastCommand are those of the last command that was found: clients send the same one again and again.
	lastName    []byte
	lastCommand *command
}

func (s *Server) newSession(client net.Addr) pipeline.Session {
	return &session{
		srv: s, client: client, id: s.lastID.Add(1), since: time.Now(), rights: s.cfg.initialRights(client), version: 2,
	}
}

// Answer implements pipeline.Session.
func (s *session) Answer(ctx context.Context, input []byte, _ bool,
	r *pipeline.Replies,
) (consumed, requests int, err error) {
	b := s.srv.newBatch(ctx, r)
	var f *pipeline.Fault
	for f == nil && !s.isEnding {
		args, size, fault := s.parser.next(b.args[:0], input[consumed:], s.parseLimits())
		b.args = args
		if f = fault; f != nil || size == 0 {
			break
		}
		consumed += size
		requests++
		if len(args) > 0 {
			s.run(b, args)
		}
		if err := r.FlushIfLarge(); err != nil {
			return consumed, requests, err
		}
	}
	b.decide()
	b.returnToPool()
	s.srv.Answered.Add(uint64(requests))
	switch {
	case f != nil:
		return consumed, requests, f
	case s.isEnding:
		return consumed, requests, pipeline.ErrEnd
	}
	return consumed, requests, nil
}

func (s *session) parseLimits() parseLimits {
	if s.rights == mayAuthenticate {
		return limitsBeforeAuth
	}
	return parseLimits{s.srv.cfg.MaxInputBytes, maxArgs}
}

// command is a command that clients can send.
type command struct {
	name string
	// arity is the number of arguments, with the name; if it is negative, the least number.
	arity int
	needs rights
	flags []string // those that COMMAND tells.
	run   func(*session, *batch, [][]byte) *replyError
	// isDecided says that run adds a request to the batch, which is decided together with others. Other commands wait
	// until those before them have been answered.
	isDecided bool
}

// run answers a command, or adds its request to b.
func (s *session) run(b *batch, args [][]byte) {
	cmd := s.lastCommand
	if !bytes.Equal(args[0], s.lastName) {
		if cmd = s.srv.findCommand(args[0]); cmd != nil {
			s.lastName, s.lastCommand = append(s.lastName[:0], args[0]...), cmd
		}
	}
	err := s.check(cmd, args)
	if err != nil || !cmd.isDecided {
		b.decide()
	}
	if err == nil {
		err = cmd.run(s, b, args)
	}
	if err != nil {
		b.decide()
		s.srv.writeError(&b.replies.Buffer, err)
	}
}

// check returns an error if the client may not send the command.
func (s *session) check(cmd *command, args [][]byte) *replyError {
	switch {
	case cmd == nil && s.rights == mayAuthenticate:
		return errNoAuth
	case cmd == nil:
		return errUnknownCommand(args)
	case s.rights < cmd.needs && s.rights == mayAuthenticate:
		return errNoAuth
	case cmd.arity > 0 && len(args) != cmd.arity, len(args) < -cmd.arity:
		return errArity(cmd.name)
	case s.rights < cmd.needs && s.srv.cfg.OperatorTokens == nil:
		return &replyError{codeNoPerm, cmd.name + " is for operators: send it from the host of the service, or set " +
			"DEBUG_TOKEN and send that with AUTH"}
	case s.rights < cmd.needs:
		return &replyError{codeNoPerm, cmd.name + " is for operators: send AUTH with DEBUG_TOKEN first"}
	}
	return nil
}

// findCommand returns the command with this name, in any case; nil if there is none.
func (s *Server) findCommand(name []byte) *command {
	var upper [maxNameBytes]byte
	if len(name) > len(upper) {
		return nil
	}
	for i, c := range name {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	return s.commandsByName[string(upper[:len(name)])]
}

func errArity(name string) *replyError {
	return errorf("wrong number of arguments for '%s' command", strings.ToLower(name))
}

// errUnknownCommand quotes the start of the command, as Redis does.
func errUnknownCommand(args [][]byte) *replyError {
	const most = 128
	cut := func(arg []byte) []byte { return arg[:min(len(arg), most)] }
	text := fmt.Appendf(nil, "unknown command '%s', with args beginning with: ", cut(args[0]))
	for _, arg := range args[1:] {
		if len(text) > 2*most {
			break
		}
		text = fmt.Appendf(text, "'%s' ", cut(arg))
	}
	return &replyError{codeERR, string(text)}
}
