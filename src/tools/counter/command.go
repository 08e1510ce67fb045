// Package counter shows and changes the counters of a running service.
package counter

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit counter`.
type options struct {
	service reach.Service
	path    string // a descriptor of a tree of limits, user/alex/trade.
	used    uint64
	literal bool // takes a * at the end of a value as it is.
	dryRun  bool
	yes     bool // resets the counters of a pattern without a question.
	asJSON  bool

	change     *operator.CounterChange // set by check.
	isTerminal func(io.Reader) bool
}

// Command returns `ratelimit counter`.
func Command() *cobra.Command {
	opt := options{isTerminal: func(r io.Reader) bool {
		f, ok := r.(*os.File)
		return ok && output.IsTerminal(f)
	}}
	return opt.command()
}

func (opt *options) command() *cobra.Command {
	cmd := command.New(help, opt.check, func(cmd *cobra.Command, _ []string) error {
		return opt.service.Ask(cmd, func(ctx context.Context, client *reach.Client) error {
			r := run{opt: opt, client: client, in: cmd.InOrStdin(), out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr()}
			return r.perform(ctx, opt.change)
		})
	})
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return actions, cobra.ShellCompDirectiveNoFileComp
	}
	f := cmd.Flags()
	f.StringVar(&opt.path, "path", "", "the descriptor as a path of words, user/alex/trade, for trees of limits")
	f.Uint64Var(&opt.used, "used", 0, "with set, how many units the counters shall hold")
	f.BoolVar(&opt.dryRun, "dry-run", false, "change nothing, and print what would be changed")
	f.BoolVar(&opt.yes, "yes", false, "reset the counters of a pattern without a question")
	f.BoolVar(&opt.literal, "literal", false, "a * at the end of a value is no pattern")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	opt.service.AddDebugFlags(f)
	return cmd
}

var actions = []string{operator.ActionGet, operator.ActionReset, operator.ActionSet}

// check sets the change that the arguments and flags ask for.
func (opt *options) check(cmd *cobra.Command, args []string) (err error) {
	opt.change, err = opt.parse(args, cmd.Flags().Changed("used"))
	return err
}

// parse returns the change that the arguments and flags ask for. hasUsed says that --used is one of them.
func (opt *options) parse(args []string, hasUsed bool) (*operator.CounterChange, error) {
	switch {
	case len(args) == 0:
		return nil, errors.New("say what to do: get, reset or set")
	case !slices.Contains(actions, args[0]):
		return nil, fmt.Errorf("%q is not known; write get, reset or set", args[0])
	case len(args) == 1:
		return nil, fmt.Errorf("name a domain and a descriptor: ratelimit counter %s DOMAIN KEY=VALUE", args[0])
	}
	c := &operator.CounterChange{Action: args[0], Domain: args[1], DryRun: opt.dryRun}
	var err error
	switch {
	case opt.path != "" && len(args) > 2:
		return nil, errors.New("--path is the whole descriptor; leave out KEY=VALUE")
	case opt.path != "":
		c.Descriptor, err = opt.pathEntries()
	default:
		c.Descriptor, err = opt.entries(args[2:])
	}
	isPattern := c.IsPattern()
	switch {
	case err != nil:
		return nil, err
	case c.Action == operator.ActionSet && !hasUsed:
		return nil, errors.New("set needs --used, the number of units that the counters shall hold")
	case c.Action == operator.ActionSet && isPattern:
		return nil, errors.New("set takes no pattern; name one descriptor, or add --literal if the value ends with *")
	case c.Action != operator.ActionSet && hasUsed:
		return nil, fmt.Errorf("--used belongs to set, not to %s", c.Action)
	case hasUsed:
		c.Used = &opt.used
	}
	return c, nil
}

// entries returns the entries that key=value stand for.
func (opt *options) entries(args []string) (entries []operator.CounterEntry, err error) {
	if len(args) == 0 {
		return nil, errors.New("name a descriptor: KEY=VALUE, in the order of the rules, or --path word/word")
	}
	for i, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("%q: write KEY=VALUE, or --path word/word for a tree of limits", arg)
		}
		e := operator.CounterEntry{Key: key, Value: value}
		if !opt.literal {
			e = operator.ParseCounterEntry(arg)
		}
		if e.Prefix != nil && i < len(args)-1 {
			return nil, fmt.Errorf("%q: only the last value may end with *; --literal takes it as it is", arg)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// pathEntries returns the entries that --path stands for. A pattern becomes the value of the word before it.
func (opt *options) pathEntries() (entries []operator.CounterEntry, err error) {
	words := strings.Split(opt.path, "/")
	for i, word := range words {
		prefix, isPattern := strings.CutSuffix(word, "*")
		isPattern = isPattern && !opt.literal
		switch {
		case word == "":
			return nil, fmt.Errorf("--path %s: write words, with a slash between each two", opt.path)
		case isPattern && i < len(words)-1:
			return nil, fmt.Errorf("--path %s: only the last word may end with *; --literal takes it as it is", opt.path)
		case isPattern && i == 0:
			return nil, fmt.Errorf("--path %s: name at least one word before the pattern", opt.path)
		case isPattern:
			entries[i-1].Prefix = &prefix
		default:
			entries = append(entries, operator.CounterEntry{Key: word})
		}
	}
	return entries, nil
}
