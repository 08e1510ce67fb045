// Package record records live requests of a running service.
package record

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit record`.
type options struct {
	service  reach.Service
	sample   string
	byKey    string
	domain   string
	duration time.Duration
	maxBytes int64
	file     string // the path of the output; empty for standard output.
}

// Command returns `ratelimit record`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.check, func(cmd *cobra.Command, _ []string) error {
		return opt.service.Ask(cmd, func(ctx context.Context, client *reach.Client) error {
			r := &recording{opt: &opt, client: client, out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr()}
			if opt.file != "" {
				r.create = func() (io.WriteCloser, error) {
					return os.OpenFile(opt.file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
				}
			}
			return r.run(ctx)
		})
	})
	f := cmd.Flags()
	f.StringVar(&opt.sample, "sample", "100%", "how much to record, as 10% or 1/20")
	f.StringVar(&opt.byKey, "by", "", "choose values of the entry with this key, and record all requests that have one")
	f.StringVar(&opt.domain, "domain", "", "record only requests to this domain")
	command.Time(f, &opt.duration, "for", admin.DefaultRecordTime, admin.MaxRecordTime, "how long to record, at most 24h")
	command.Number(f, &opt.maxBytes, "max-bytes", admin.DefaultRecordBytes, 1, admin.MaxRecordBytes,
		fmt.Sprintf("size of the recording at which it ends, 1 to %d", admin.MaxRecordBytes))
	f.StringVarP(&opt.file, "output", "o", "", "file to write instead of standard output; only you may read it")
	opt.service.AddDebugFlags(f)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// check returns what is wrong with the arguments and flags.
func (opt *options) check(cmd *cobra.Command, args []string) error {
	if err := command.NoArguments(cmd, args); err != nil {
		return err
	}
	if cmd.Flags().Changed("by") && opt.byKey == "" {
		return errors.New("--by: write the key of an entry, such as user")
	}
	if _, err := admin.ParseSample(opt.sample); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return nil
}
