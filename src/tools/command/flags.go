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
	"ratelimit/src/settings/units"
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

// normalize returns the name of a flag that is written with underscores, as upstream's tools do, or by an older name.
func normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	if now := olderNames[name]; now != "" {
		name = now
	}
	return pflag.NormalizedName(name)
}

// invalidFlags makes the program exit with ExitInput for an unknown flag or an invalid value.
func invalidFlags(_ *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = fmt.Errorf("--%s %s: %w", e.GetFlag().Name, output.Printable(e.GetValue()), e.Unwrap())
	}
	return InvalidInput(err)
}

// value is the value of a flag, in *p. parse returns the value that a text stands for.
type value[T any] struct {
	p     *T
	kind  string // the type in help texts
	parse func(text string) (T, error)
}

func (v value[T]) String() string { return fmt.Sprint(*v.p) }
func (v value[T]) Type() string   { return v.kind }

func (v value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.p = parsed
	}
	return err
}

// Choice adds a flag whose value is one of words, of which the first is the default. Capitals do not matter. Shells
// complete the words.
func Choice(cmd *cobra.Command, p *string, name, usage string, words ...string) {
	*p = words[0]
	cmd.Flags().Var(value[string]{p, "string", func(text string) (string, error) {
		i := slices.IndexFunc(words, func(word string) bool { return strings.EqualFold(word, text) })
		if i < 0 {
			last := len(words) - 1
			return "", fmt.Errorf("write %s or %s", strings.Join(words[:last], ", "), words[last])
		}
		return words[i], nil
	}}, name, usage)
	complete := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc(name, complete) // It fails only if there is no such flag.
}

// KeyFormat adds the flag --key-format, which sets p with v2.
func KeyFormat(cmd *cobra.Command, p *bool, usage string) {
	Choice(cmd, new(string), "key-format", usage, "v1", "v2")
	f := cmd.Flags().Lookup("key-format")
	v := f.Value.(value[string])
	parse := v.parse
	v.parse = func(text string) (string, error) {
		word, err := parse(text)
		*p = word == "v2"
		return word, err
	}
	f.Value = v
}

// Number adds a flag whose value is a whole number from least to most.
func Number[N int | int64](f *pflag.FlagSet, p *N, name string, byDefault, least, most N, usage string) {
	*p = byDefault
	f.Var(value[N]{p, "int", func(text string) (N, error) {
		n, err := strconv.ParseInt(text, 0, strconv.IntSize)
		switch {
		case err == nil && n >= int64(least) && n <= int64(most):
			return N(n), nil
		case int64(most) == math.MaxInt64:
			return 0, fmt.Errorf("write %d or more", least)
		}
		return 0, fmt.Errorf("write %d to %d", least, most)
	}}, name, usage)
}

// number describes the values of a flag that is a number with a unit.
type number[T any] struct {
	kind, what string // what says what to write instead of a refused value
	example    string // shown if the refused value has no number; empty for none
	units      []units.Unit
	parse      func(string) (T, error)
	isRight    func(T) bool
}

func (n number[T]) add(f *pflag.FlagSet, p *T, name string, byDefault T, usage string) {
	*p = byDefault
	isRight := func(text string) bool {
		v, err := n.parse(text)
		return err == nil && n.isRight(v)
	}
	f.Var(value[T]{p, n.kind, func(text string) (T, error) {
		v, err := n.parse(text)
		if err == nil && n.isRight(v) {
			return v, nil
		}
		likely := n.units
		if err == nil && strings.Trim(text, "0123456789.") != "" { // It has a unit, and is out of bounds.
			likely = nil
		}
		return v, errors.New(units.Advice(n.what, text, n.example, likely, isRight))
	}}, name, usage)
}

// Bytes adds a flag whose value is a size from least to most, in bytes or with a unit.
func Bytes(f *pflag.FlagSet, p *int64, name string, byDefault, least, most int64, usage string) {
	bounds := " or more"
	if most < math.MaxInt64 {
		bounds = " to " + units.FormatBytes(most)
	}
	number[int64]{
		kind: "bytes", what: "a number of bytes, " + units.FormatBytes(least) + bounds, units: units.OfBytes,
		parse: units.Bytes, isRight: func(n int64) bool { return n >= least && n <= most },
	}.add(f, p, name, byDefault, usage)
}

// Time adds a flag whose value is a time above 0 s, and at most most unless that is 0.
func Time(f *pflag.FlagSet, p *time.Duration, name string, byDefault, most time.Duration, usage string) {
	what, example := "a time above 0s", "5s"
	if most > 0 {
		what, example = fmt.Sprintf("a time above 0s and up to %v", most), "30s"
	}
	number[time.Duration]{
		kind: "duration", what: what, example: example, units: units.OfDuration,
		parse: units.Duration, isRight: func(d time.Duration) bool { return d > 0 && (most == 0 || d <= most) },
	}.add(f, p, name, byDefault, usage)
}

// TimeOrZero adds a flag whose value is a time of 0 s or more.
func TimeOrZero(f *pflag.FlagSet, p *time.Duration, name string, byDefault time.Duration, usage string) {
	number[time.Duration]{
		kind: "duration", what: "a time of 0s or more", example: "5s", units: units.OfDuration,
		parse: units.Duration, isRight: func(d time.Duration) bool { return d >= 0 },
	}.add(f, p, name, byDefault, usage)
}

// Rate adds a flag whose value is a rate above 0 per second, without a default.
func Rate(f *pflag.FlagSet, p *float64, name, usage string) {
	number[float64]{
		kind: "rate", what: "a rate above 0, or leave the flag out", example: "500/s", units: units.OfRate,
		parse: units.PerSecond, isRight: func(r float64) bool { return r > 0 },
	}.add(f, p, name, 0, usage)
}
