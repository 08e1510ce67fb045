package logging

import (
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/grpclog"
)

// Output writes to stdout and stderr through queues, so a reader that is slow, stuck or gone does not block the
// service.
type Output struct {
	outQueue, errQueue *queue
	Stderr             io.Writer // what the queue of stderr writes to.
	flushDeadline      time.Time // ends the writing of queued lines. Zero: flushTimeout after run returns.
}

// flushTimeout bounds how long the process writes queued lines after all else has stopped.
const flushTimeout = 1900 * time.Millisecond

// WithOutput calls run with queues in front of stdout and stderr. It writes the error of
// run to stderr and returns it, when everything is written or flushTimeout have passed.
func WithOutput(stdout, stderr io.Writer, run func(*Output) error) error {
	o := &Output{outQueue: newQueue(stdout), errQueue: newQueue(stderr), Stderr: stderr}
	go o.outQueue.run()
	go o.errQueue.run()
	defer func() { // The queues are written after a panic, too.
		if o.flushDeadline.IsZero() {
			o.StartFlush()
		}
		o.outQueue.close(o.flushDeadline)
		o.errQueue.close(o.flushDeadline)
	}()
	err := run(o)
	if err != nil {
		fmt.Fprintln(o.errQueue.important(), "ratelimit:", err)
	}
	return err
}

// StartFlush sets the deadline for queued lines to flushTimeout from now.
func (o *Output) StartFlush() { o.flushDeadline = time.Now().Add(flushTimeout) }

// Stdout returns stdout, for important lines.
func (o *Output) Stdout() io.Writer { return o.outQueue.important() }

// Stats returns the figures of stderr.
func (o *Output) Stats() Stats { return o.errQueue.Stats() }

// OwnProcess is for commands that are the whole process. It ignores SIGPIPE, with which Go ends a process whose stdout
// or stderr has no reader, and sends the global logs of libraries to o.
func (o *Output) OwnProcess() {
	signal.Ignore(syscall.SIGPIPE)
	log.SetOutput(o.errQueue)
	info, warning, failure := io.Discard, io.Discard, io.Discard
	switch strings.ToLower(os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL")) { // gRPC reads this variable in the same way.
	case "info":
		info = o.errQueue
	case "warning":
		warning = o.errQueue
	default:
		failure = o.errQueue
	}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(info, warning, failure))
}
