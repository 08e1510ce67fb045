package service

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/service/heap"
	"ratelimit/src/settings"
)

// Config says what New builds. ServeConfig and DivvyConfig read one from an environment.
type Config struct {
	// Settings are required.
	Settings *settings.Settings
	// Warnings are logged first: settings that have no effect or are unknown.
	Warnings []string
	// Rules is the file or directory with the rules, instead of the directory that
	// Settings name. Defaults to that directory.
	Rules string
	// OneList accepts only a file that holds one ordered list of rules. New fails unless
	// Rules is such a file, so no client connects to a service without rules. Run fails
	// if the file is wrong when it is read again before the first rules are in force.
	OneList bool
	// Output receives the log and what OnReady writes. Required.
	Output *Output
	// Signals: SIGHUP reads the rules again, the first other signal stops the service, the
	// second stops it without waiting for running requests. Nil: only the end of Run's
	// context stops it.
	Signals <-chan os.Signal
	// OnReady is called once, when requests are answered. Nil: nothing is called.
	OnReady func(Ready)
	// Heap tunes the garbage collector to the memory of the counters. Nil: Go's defaults apply.
	Heap *heap.Tuner
	// Version and Commit are shown by metrics and traces.
	Version, Commit string
}

// Ready describes a service that answers requests.
type Ready struct {
	Out   io.Writer // standard output
	Rules *rules.Set
	HTTP  net.Addr // nil: there is no HTTP port
	Divvy net.Addr // nil: the port of divvy's protocol was not open at the start
}

// ServeConfig reads the configuration of `ratelimit serve` from environ, a list of
// NAME=value such as os.Environ. Rules is a file or directory with the rules; empty: the
// environment names it. The error joins all problems.
func ServeConfig(environ []string, rules string) (Config, error) {
	return serveConfig(environ, rules, settings.RedisSocket)
}

// serveConfig uses the Redis at socket, if there is one and environ names no store.
func serveConfig(environ []string, rules, socket string) (Config, error) {
	env := newEnvironment(environ)
	lookup, warnings := settings.WithRedisSocket(socket, env.lookup)
	s, more, err := settings.Read(lookup)
	if err != nil {
		return Config{}, fmt.Errorf("settings:\n%w", err)
	}
	warnings = append(append(warnings, more...), env.unknown(settings.Table())...)
	if rules != "" && s.ConfigType == settings.ConfigXDS {
		return Config{}, errors.New("--config: CONFIG_TYPE=" + settings.ConfigXDS + " says that rules come from a management server; leave out one of them")
	}
	for _, name := range []string{"RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"} {
		if v, _ := lookup(name); v != "" && rules != "" {
			warnings = append(warnings, fmt.Sprintf("%s=%s has no effect: --config says where the rules are; remove one of the two", name, v))
		}
	}
	return Config{Settings: s, Warnings: warnings, Rules: rules}, nil
}

// DivvyConfig reads the configuration of `ratelimit divvy` from environ, as ServeConfig
// does: divvy's own variables, one file of rules, divvy's statistics.
func DivvyConfig(environ []string, file string) (Config, error) {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".ini", ".json", ".yaml", ".yml":
	default:
		return Config{}, fmt.Errorf("divvy: %s: the name of a file of rules ends in .ini or .json, or in .yaml", file)
	}
	env := newEnvironment(environ)
	s, warnings, err := settings.ReadDivvy(file, env.lookup)
	if err != nil {
		return Config{}, fmt.Errorf("settings:\n%w", err)
	}
	warnings = append(warnings, env.unknown(append(settings.Table(), settings.DivvyTable()...))...)
	store := "counters in memory"
	if s.BackendType == "redis" {
		store = "Redis host " + strings.Join(s.Redis.Addrs, ",")
	}
	return Config{Settings: s, Warnings: warnings, Rules: file, OneList: true, OnReady: func(r Ready) {
		_, port, err := net.SplitHostPort(r.Divvy.String())
		if err != nil {
			port = r.Divvy.String()
		}
		fmt.Fprintf(r.Out, "Listening on port TCP port %s, %s\n", port, store) // divvy's own words
	}}, nil
}

// environment has the values of variables by name.
type environment map[string]string

func newEnvironment(environ []string) environment {
	env := make(environment)
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	return env
}

func (e environment) lookup(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

// unknown returns warnings about variables that are probably mistyped names of table.
func (e environment) unknown(table []settings.Variable) []string {
	return settings.Unknown(slices.Collect(maps.Keys(e)), table)
}
