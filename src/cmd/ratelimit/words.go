package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/src/settings/nearest"
)

// arguments turns the program's arguments into those of the command tree. args[0] may name a
// command, because images have links such as ratelimit_client. So may args[1], because compose
// files repeat `/bin/ratelimit` after the entry point. Long flags may have one dash, as in
// envoyproxy/ratelimit's tools:
//
//	ratelimit_config_check -config_dir x -> check --config_dir x
func arguments(args []string) []string {
	out, args := byName(args[0]), args[1:]
	if len(out) == 0 && len(args) > 0 && isOwnName(args[0]) {
		out, args = byName(args[0]), args[1:]
	}
	if len(out) == 1 && out[0] == upstreamClientName {
		return append(out, args...)
	}
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		if len(out) == 1 && out[0] == "serve" && isOwnName(a) {
			continue
		}
		if len(a) > 2 && a[0] == '-' && a[1] != '-' {
			a = "-" + a
		}
		out = append(out, a)
	}
	return out
}

// ownNames are the names of the binary, with the commands that they stand for.
var ownNames = map[string][]string{
	"ratelimit":              nil,
	upstreamClientName:       {upstreamClientName},
	"ratelimit_config_check": {"check"},
}

func isOwnName(path string) bool {
	_, own := ownNames[filepath.Base(path)]
	return own
}

// byName returns the command that the binary's name stands for; empty: none.
func byName(path string) []string {
	return slices.Clone(ownNames[filepath.Base(path)])
}

// checkCommandWord returns an error if the first word of args is no command. Cobra would
// ignore that word.
func checkCommandWord(root *cobra.Command, args []string) error {
	if len(args) > 1 && args[0] == "help" {
		args = args[1:]
	}
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find(args)
	if err != nil || cmd != root || root.ParseFlags(args) != nil || root.Flags().NArg() == 0 {
		return nil // a command, or cobra has a better message
	}
	word := root.Flags().Arg(0)
	if strings.HasPrefix(word, "__") { // how shells ask cobra for completions
		return nil
	}
	return badInput(fmt.Errorf("%q is no command; %s", word, meantCommand(root, word, "`ratelimit --help` lists them")))
}

// meantCommand returns a question with the command most similar to word, else otherwise.
func meantCommand(root *cobra.Command, word, otherwise string) string {
	var names []string
	for _, c := range root.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	if meant := nearest.Word(word, names); meant != "" {
		return "did you mean `ratelimit " + meant + "`?"
	}
	return otherwise
}

// noWords is the Args of commands that take only flags.
func noWords(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := fmt.Sprintf("`ratelimit %s --help` shows what it takes", cmd.Name())
	if cmd.Name() == "serve" {
		hint = meantCommand(cmd.Root(), args[0], hint)
	}
	return badInput(fmt.Errorf("takes no argument %q; %s", args[0], hint))
}
