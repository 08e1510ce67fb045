// Package record records live requests of a running service.
package record

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/settings/units"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

const (
	// maxLineBytes is more than the longest line: the 64 KiB of a request can take six times as much in JSON.
	maxLineBytes = 1 << 20
	// lastLinesTime is how long lines are received after ctx ends. The service sends a line up to 0.2 s after the request.
	lastLinesTime = 300 * time.Millisecond
)

// options are the flags of `ratelimit record`.
type options struct {
	service  reach.Service
	sample   string
	byKey    string
	domain   string
	duration time.Duration
	maxBytes int64
	file     string // the path of the output; empty for standard output
}

// Command returns `ratelimit record`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.check, func(cmd *cobra.Command, _ []string) error {
		return opt.service.Ask(cmd, func(ctx context.Context, client *debugport.Client) error {
			return (&recording{opt: &opt, client: client, cmd: cmd, started: time.Now()}).run(ctx)
		})
	})
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	f := cmd.Flags()
	f.StringVar(&opt.sample, "sample", "100%", "how much to record, as 10% or 1/20")
	f.StringVar(&opt.byKey, "by", "", "choose values of the entry with this key, and record all requests that have one")
	f.StringVar(&opt.domain, "domain", "", "record only requests to this domain")
	command.Time(f, &opt.duration, "for", admin.DefaultRecordTime, admin.MaxRecordTime, "how long to record, at most 24h")
	command.Bytes(f, &opt.maxBytes, "max-bytes", admin.DefaultRecordBytes, 1, admin.MaxRecordBytes,
		"size of the recording at which it ends, at most "+units.FormatBytes(admin.MaxRecordBytes))
	f.StringVarP(&opt.file, "output", "o", "", "file to write instead of standard output; only you may read it")
	opt.service.AddDebugFlags(f)
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

type recording struct {
	opt    *options
	client *debugport.Client
	cmd    *cobra.Command

	started        time.Time
	requests, lost uint64
	bytes          int64
	end            string // the value of admin.RecordEndTrailer
}

// run records until the service ends the recording, or until shortly after ctx ends, which is no error.
func (r *recording) run(ctx context.Context) error {
	query := url.Values{
		"sample": {r.opt.sample}, "for": {r.opt.duration.String()}, "max_bytes": {strconv.FormatInt(r.opt.maxBytes, 10)},
	}
	if r.opt.byKey != "" {
		query.Set("by", r.opt.byKey)
	}
	if r.opt.domain != "" {
		query.Set("domain", r.opt.domain)
	}
	receiving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastLinesTime, stop) })()
	errOut := r.cmd.ErrOrStderr()
	show := command.ProgressLine(errOut)
	err := r.client.Open(receiving, "/api/record", query, "application/x-ndjson", func(resp *http.Response) error {
		return r.receive(resp, func() { show("%s", r) })
	})
	show("")
	interrupted := ctx.Err() != nil
	if err == nil || interrupted && r.end == "" && !errors.Is(err, errOutput) {
		fmt.Fprintf(errOut, "%s%s\n", r, r.endText(interrupted))
		return nil
	}
	if r.requests > 0 {
		fmt.Fprintln(errOut, r)
	}
	return err
}

// errOutput is the class of failures of writing the recording.
var errOutput = errors.New("the recording cannot be written")

func outputError(err error) error { return fmt.Errorf("%w: %w", errOutput, err) }

// receive writes the lines of an answer to the output, and calls progress now and then.
func (r *recording) receive(resp *http.Response, progress func()) error {
	if r.opt.file == "" {
		return r.copyLines(resp, r.cmd.OutOrStdout(), progress)
	}
	file, err := os.OpenFile(r.opt.file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return outputError(err)
	}
	err = r.copyLines(resp, file, progress)
	if failed := file.Close(); failed != nil && err == nil {
		err = outputError(failed)
	}
	return err
}

// copyLines writes the lines of an answer to out.
func (r *recording) copyLines(resp *http.Response, out io.Writer, progress func()) error {
	lines := bufio.NewReaderSize(resp.Body, maxLineBytes)
	buffered := bufio.NewWriterSize(out, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err == nil && len(line) > 1 { // An empty line says that the service is there.
			r.count(line)
			if _, err := buffered.Write(line); err != nil {
				return outputError(err)
			}
		}
		if err != nil || lines.Buffered() == 0 { // The next line may take long.
			if err := buffered.Flush(); err != nil {
				return outputError(err)
			}
		}
		progress()
		if errors.Is(err, io.EOF) && len(line) == 0 {
			r.end = resp.Trailer.Get(admin.RecordEndTrailer)
			return nil
		}
		if err != nil {
			return &debugport.Error{
				Temporary: true,
				Err:       fmt.Errorf("%s: the recording broke off: %w; its whole lines are written", r.client.Address, err),
			}
		}
	}
}

// lostKey follows the time of a line that says how many requests are missing.
var lostKey = []byte(`","lost":`)

func (r *recording) count(line []byte) {
	r.bytes += int64(len(line))
	if !bytes.Contains(line[:min(len(line), 64)], lostKey) {
		r.requests++
		return
	}
	var missing struct{ Lost uint64 }
	_ = json.Unmarshal(line, &missing) // The service writes no other such lines.
	r.lost += missing.Lost
}

func (r *recording) String() string {
	took := time.Since(r.started).Round(100 * time.Millisecond)
	text := fmt.Sprintf("%s in %v, %d bytes", output.Plural(r.requests, "request"), took, r.bytes)
	if r.lost > 0 {
		text += fmt.Sprintf("; %d more were lost, so answers of a replay may differ", r.lost)
	}
	return text
}

// endText returns why the recording ended, if not after --for.
func (r *recording) endText(interrupted bool) string {
	switch {
	case interrupted:
		return "; ended early"
	case r.end == admin.RecordEndMaxBytes:
		return "; ended by --max-bytes"
	}
	return ""
}
