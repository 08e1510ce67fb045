package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/src/settings/nearest"
	"ratelimit/src/tools/client"
	"ratelimit/src/tools/command"
)

// commandWords returns the words for cobra: the name of a command, then its arguments. They are never nil, because
// cobra would read os.Args instead. args[0] may name a command, because images have links such as ratelimit_client. So
// may args[1], because compose files repeat `/bin/ratelimit` after the entry point. Long flags may have one dash, as in
// envoyproxy/ratelimit's tools:
//
//	ratelimit_config_check -config_dir x -> check --config_dir x
func commandWords(args []string) []string {
	name, args := commandOfProgram[filepath.Base(args[0])], args[1:]
	if name == "" && len(args) > 0 && isProgram(args[0]) {
		name, args = commandOfProgram[filepath.Base(args[0])], args[1:]
	}
	if name != "" {
		args = append([]string{name}, args...)
	}
	if name == client.UpstreamName {
		return args
	}
	words := []string{}
	for i, a := range args {
		if a == "--" {
			return append(words, args[i:]...)
		}
		if slices.Equal(words, []string{"serve"}) && isProgram(a) {
			continue
		}
		if len(a) > 2 && a[0] == '-' && a[1] != '-' {
			a = "-" + a
		}
		words = append(words, a)
	}
	return words
}

// commandOfProgram has the names of the program, each with the command that it stands for.
var commandOfProgram = map[string]string{
	"ratelimit":              "",
	client.UpstreamName:      client.UpstreamName,
	"ratelimit_config_check": "check",
}

func isProgram(path string) bool {
	_, known := commandOfProgram[filepath.Base(path)]
	return known
}

// checkCommand returns an error if the first argument names no command, or the second one no shell. Cobra would ignore
// it.
func checkCommand(root *cobra.Command, words []string) error {
	if len(words) > 1 && words[0] == "help" {
		words = words[1:]
	}
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(words)
	if err == nil && cmd.Name() == "completion" && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return command.InvalidInput(fmt.Errorf("completion: %q is no shell; write bash, zsh, fish or powershell", rest[0]))
	}
	if err != nil || cmd != root || root.ParseFlags(words) != nil || root.Flags().NArg() == 0 {
		return nil // There is a command, or the error of cobra is better.
	}
	name := root.Flags().Arg(0)
	if strings.HasPrefix(name, "__") { // Shells ask cobra for completions with such names.
		return nil
	}
	return command.InvalidInput(fmt.Errorf("%q is no command; %s", name,
		suggestCommand(root, name, "`ratelimit --help` lists them")))
}

// suggestCommand returns a question with the command whose name is most similar. It returns otherwise if none is
// similar.
func suggestCommand(root *cobra.Command, name, otherwise string) string {
	var names []string
	for _, c := range root.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	if similar := nearest.Word(name, names); similar != "" {
		return "did you mean `ratelimit " + similar + "`?"
	}
	return otherwise
}

// noWords is the check of `ratelimit serve`: a word after it is likely meant to be a command.
func noWords(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		hint := suggestCommand(cmd.Root(), args[0], fmt.Sprintf("`%s --help` shows what it takes", cmd.CommandPath()))
		return fmt.Errorf("takes no argument %q; %s", args[0], hint)
	}
	return nil
}
