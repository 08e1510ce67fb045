package command

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ratelimit/src/operator/output"
)

// olderNames are names of flags that an earlier version had. They still work, and no help text shows them.
var olderNames = map[string]string{
	"url":                 "address",
	"dial-string":         "address",
	"grpc-use-tls":        "tls",
	"grpc-server-ca-file": "tls-ca",
	"grpc-cert-file":      "tls-cert",
	"grpc-key-file":       "tls-key",
}

// normalize returns the name of a flag that may be written with underscores, as in envoyproxy/ratelimit's tools, or by
// its older name.
func normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	if now := olderNames[name]; now != "" {
		name = now
	}
	return pflag.NormalizedName(name)
}

// invalidFlags makes the program exit with ExitInput if a flag is unknown or has an invalid value. It is a cobra
// FlagErrorFunc.
func invalidFlags(_ *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = fmt.Errorf("--%s %s: %w", e.GetFlag().Name, output.Printable(e.GetValue()), e.Unwrap())
	}
	return InvalidInput(err)
}

// Choice adds a flag whose value is one of words, of which the first is the default. Capitals do not matter. Shells
// complete the words.
func Choice(cmd *cobra.Command, p *string, name, usage string, words ...string) {
	*p = words[0]
	cmd.Flags().Var(&choice{p, words}, name, usage)
	complete := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc(name, complete) // It fails only if there is no such flag.
}

type choice struct {
	word  *string
	words []string
}

func (c *choice) String() string { return *c.word }
func (c *choice) Type() string   { return "string" }

func (c *choice) Set(text string) error {
	i := slices.IndexFunc(c.words, func(word string) bool { return strings.EqualFold(word, text) })
	if i < 0 {
		last := len(c.words) - 1
		return fmt.Errorf("write %s or %s", strings.Join(c.words[:last], ", "), c.words[last])
	}
	*c.word = c.words[i]
	return nil
}

// KeyFormat adds the flag --key-format, which sets p with v2.
func KeyFormat(cmd *cobra.Command, p *bool, usage string) {
	Choice(cmd, new(string), "key-format", usage, "v1", "v2")
	f := cmd.Flags().Lookup("key-format")
	f.Value = &keyFormat{f.Value, p}
}

type keyFormat struct {
	pflag.Value
	isV2 *bool
}

func (k *keyFormat) Set(text string) error {
	err := k.Value.Set(text)
	*k.isV2 = k.String() == "v2"
	return err
}

// Number adds a flag whose value is a whole number from least to most.
func Number[N int | int64](f *pflag.FlagSet, p *N, name string, value, least, most N, usage string) {
	*p = value
	f.Var(&number[N]{p, least, most}, name, usage)
}

type number[N int | int64] struct {
	value       *N
	least, most N
}

func (n *number[N]) String() string { return strconv.FormatInt(int64(*n.value), 10) }
func (n *number[N]) Type() string   { return "int" }

func (n *number[N]) Set(text string) error {
	value, err := strconv.ParseInt(text, 0, strconv.IntSize)
	switch {
	case err == nil && value >= int64(n.least) && value <= int64(n.most):
		*n.value = N(value)
		return nil
	case int64(n.most) == math.MaxInt64:
		return fmt.Errorf("write %d or more", n.least)
	}
	return fmt.Errorf("write %d to %d", n.least, n.most)
}

// Time adds a flag whose value is a time above 0 s, and at most most unless that is 0.
func Time(f *pflag.FlagSet, p *time.Duration, name string, value, most time.Duration, usage string) {
	*p = value
	f.Var(&duration{p, most}, name, usage)
}

type duration struct {
	value *time.Duration
	most  time.Duration // 0: no bound
}

func (d *duration) String() string { return d.value.String() }
func (d *duration) Type() string   { return "duration" }

func (d *duration) Set(text string) error {
	value, err := time.ParseDuration(text)
	switch {
	case err == nil && value > 0 && (d.most == 0 || value <= d.most):
		*d.value = value
		return nil
	case d.most > 0:
		return fmt.Errorf("write a time above 0s and up to %v, such as 30s", d.most)
	}
	return errors.New("write a time above 0s, such as 5s")
}
