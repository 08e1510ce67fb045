package denials

import (
	"context"
	_ "embed"

	"github.com/spf13/cobra"

	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit denials`.
type options struct {
	service      reach.Service
	domain, rule string // Empty for all.
	limit        int
	follow       bool
	asJSON       bool
}

// Command returns `ratelimit denials`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.service.Argument, func(cmd *cobra.Command, _ []string) error {
		return opt.service.Ask(cmd, func(ctx context.Context, client *reach.Client) error {
			return newFollower(&opt, client, cmd.OutOrStdout(), cmd.ErrOrStderr()).run(ctx)
		})
	})
	f := cmd.Flags()
	f.BoolVar(&opt.follow, "follow", false, "go on with new denials until Ctrl-C")
	f.BoolVar(&opt.asJSON, "json", false, "print each denial as a JSON object on one line")
	f.StringVar(&opt.domain, "domain", "", "print only denials of this domain")
	f.StringVar(&opt.rule, "rule", "", "print only denials of the rule with this full name, as in the column RULE")
	command.Number(f, &opt.limit, "limit", 100, 1, maxFetched,
		"most of the recent denials to print, 1 to 1000; new ones of --follow are all printed")
	opt.service.AddDebugFlags(f)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}
