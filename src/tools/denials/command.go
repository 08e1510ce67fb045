package denials

import (
	_ "embed"
	"fmt"

	"github.com/spf13/cobra"

	"ratelimit/src/tools/command"
	"ratelimit/src/tools/debugport"
)

//go:embed help.txt
var help string

// Command returns `ratelimit denials`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, func(cmd *cobra.Command, args []string) error {
		return opt.run(cmd, debugport.AddressOf(args))
	})
	cmd.Args = cobra.MaximumNArgs(1)
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&opt.follow, "follow", false, "go on with new denials until Ctrl-C")
	f.BoolVar(&opt.asJSON, "json", false, "print each denial as a JSON object on one line")
	f.StringVar(&opt.domain, "domain", "", "print only denials of this domain")
	f.StringVar(&opt.rule, "rule", "", "print only denials of the rule with this full name, as in the column RULE")
	f.IntVar(&opt.limit, "limit", 100, "most of the recent denials to print, 1 to 1000; new ones of --follow are all printed")
	opt.port.AddFlags(f)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// run prints the denials of the service at address.
func (opt *options) run(cmd *cobra.Command, address string) error {
	if opt.limit < 1 || opt.limit > maxFetched {
		return fmt.Errorf("--limit %d: write 1 to %d", opt.limit, maxFetched)
	}
	client, err := opt.port.NewClient(address)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := command.UntilSignal(cmd.Context())
	defer stop()
	return newFollower(opt, client, cmd.OutOrStdout(), cmd.ErrOrStderr()).run(ctx)
}
