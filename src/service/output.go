package service

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

	"ratelimit/src/service/logging"
)

// Output is where a service writes: through queues, so a reader of stdout or stderr that
// is slow, stuck or gone stops nothing.
type Output struct {
	out, err       *logging.Writer
	stdout, stderr io.Writer // behind the queues
	deadline       time.Time // for writing what is queued at the end; zero: lastWords after run returns
}

// lastWords is how long the process may take at the end, when everything else has
// stopped, to write what is queued.
const lastWords = 1900 * time.Millisecond

// WithOutput calls run with queues in front of stdout and stderr. It writes the error of
// run to stderr and returns it, when everything is written or lastWords have passed.
func WithOutput(stdout, stderr io.Writer, run func(*Output) error) error {
	o := &Output{out: logging.New(logging.Config{To: stdout}), err: logging.New(logging.Config{To: stderr}), stdout: stdout, stderr: stderr}
	go o.out.Run()
	go o.err.Run()
	defer func() { // after a panic, too
		if o.deadline.IsZero() {
			o.deadline = time.Now().Add(lastWords)
		}
		o.out.Close(o.deadline)
		o.err.Close(o.deadline)
	}()
	err := run(o)
	if err != nil {
		fmt.Fprintln(o.err.Important(), "ratelimit:", err)
	}
	return err
}

// OwnProcess is for commands that are the whole process. It ignores SIGPIPE, with which Go
// ends a process whose stdout or stderr has no reader, and sends the global logs of
// libraries to o.
func (o *Output) OwnProcess() {
	signal.Ignore(syscall.SIGPIPE)
	log.SetOutput(o.err)
	info, warning, failure := io.Discard, io.Discard, io.Discard
	switch strings.ToLower(os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL")) { // as gRPC itself reads it
	case "info":
		info = o.err
	case "warning":
		warning = o.err
	default:
		failure = o.err
	}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(info, warning, failure))
}
