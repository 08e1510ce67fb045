// Package record records live requests of a running service.
package record

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/debugport"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit record`.
type options struct {
	port     debugport.Options
	address  string
	sample   string
	byKey    string
	domain   string
	duration time.Duration
	maxBytes int64
	file     string // file is the path of the output; empty for standard output.
}

// Command returns `ratelimit record`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) })
	cmd.Args = func(cmd *cobra.Command, args []string) error { return command.InvalidInput(cobra.NoArgs(cmd, args)) }
	cmd.SetFlagErrorFunc(command.InvalidFlags)
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&opt.address, "url", debugport.DefaultAddress, "the debug port of the service, host:port or https://host:port")
	f.StringVar(&opt.sample, "sample", "100%", "how much to record, as 10% or 1/20")
	f.StringVar(&opt.byKey, "by", "", "choose values of the entry with this key, and record all requests that have one")
	f.StringVar(&opt.domain, "domain", "", "record only requests to this domain")
	f.DurationVar(&opt.duration, "for", admin.DefaultRecordTime, "how long to record, at most 24h")
	f.Int64Var(&opt.maxBytes, "max-bytes", admin.DefaultRecordBytes, fmt.Sprintf("size of the recording at which it ends, 1 to %d", admin.MaxRecordBytes))
	f.StringVarP(&opt.file, "output", "o", "", "file to write instead of standard output; only you may read it")
	opt.port.AddFlags(f)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// check returns what is wrong with the flags.
func (opt *options) check(cmd *cobra.Command) error {
	switch {
	case opt.duration <= 0 || opt.duration > admin.MaxRecordTime:
		return fmt.Errorf("--for %v: write a time above 0s and up to %v", opt.duration, admin.MaxRecordTime)
	case opt.maxBytes < 1 || opt.maxBytes > admin.MaxRecordBytes:
		return fmt.Errorf("--max-bytes %d: write 1 to %d", opt.maxBytes, admin.MaxRecordBytes)
	case cmd.Flags().Changed("by") && opt.byKey == "":
		return errors.New("--by: write the key of an entry, such as user")
	}
	if _, err := admin.ParseSample(opt.sample); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return nil
}

// run records the requests of the service.
func (opt *options) run(cmd *cobra.Command) (err error) {
	if err := opt.check(cmd); err != nil {
		return command.InvalidInput(err)
	}
	client, err := opt.port.NewClient(opt.address)
	if err != nil {
		return command.InvalidInput(err)
	}
	defer client.Close()
	ctx, stop := command.UntilSignal(cmd.Context())
	defer stop()
	r := &recording{opt: opt, client: client, out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr()}
	if opt.file != "" {
		r.create = func() (io.WriteCloser, error) {
			return os.OpenFile(opt.file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		}
	}
	return r.run(ctx)
}
