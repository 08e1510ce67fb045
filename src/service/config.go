package service

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/service/heap"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
)

// Config says what New builds. ServeConfig and DivvyConfig read one from an environment.
type Config struct {
	// Settings are required.
	Settings *settings.Settings
	// SettingsWarnings are logged first: settings that have no effect or are unknown.
	SettingsWarnings []string
	// RulesPath is the file or directory with the rules, instead of the directory that Settings name. Defaults to that
	// directory.
	RulesPath string
	// RequireOrderedList accepts only a file that holds one ordered list of rules. New fails unless
	// RulesPath is such a file, so no client connects to a service without rules. Run fails
	// if the file is wrong when it is read again before the first rules are in force.
	RequireOrderedList bool
	// Output receives the log and what OnReady writes. Required.
	Output *logging.Output
	// Signals: SIGHUP reads the rules again, the first other signal stops the service, the second stops it without waiting
	// for running requests. Nil: only the end of Run's context stops it.
	Signals <-chan os.Signal
	// OnReady is called once, when requests are answered. It must not block. Nil: nothing is called.
	OnReady func(Ready)
	// Heap tunes the garbage collector to the memory of the counters. Nil: Go's defaults apply.
	Heap *heap.Tuner
	// Version and Commit are shown by metrics and traces.
	Version, Commit string
}

// Ready describes a service that answers requests.
type Ready struct {
	Stdout    io.Writer // standard output.
	Rules     *rules.Set
	HTTPAddr  net.Addr // nil if there is no HTTP port.
	DebugAddr net.Addr // nil if there is no debug port.
	DivvyAddr net.Addr // nil if divvy's port was not open at the start.
}

// ServeConfig reads the configuration of `ratelimit serve` from environ, a list of NAME=value such as os.Environ. Rules
// is a file or directory with the rules; empty: the environment names it. The error joins all problems.
func ServeConfig(environ []string, rules string) (Config, error) {
	return serveConfig(environ, rules, settings.UpstreamSocket)
}

// serveConfig uses the Redis at socket, if there is one and environ names no store.
func serveConfig(environ []string, rules, socket string) (Config, error) {
	env := settings.NewEnvironment(environ)
	warnings := env.UseUpstreamSocket(socket)
	s, more, err := settings.Read(env)
	if err != nil {
		return Config{}, fmt.Errorf("settings:\n%w", err)
	}
	warnings = slices.Concat(warnings, more, env.Unknown(settings.Table()))
	if rules != "" && !s.UsesFiles() {
		return Config{}, errors.New("--config: CONFIG_TYPE=" + s.ConfigType + " says that rules come from a management " +
			"server; leave out one of them")
	}
	areBeside := rules != "" && env["RUNTIME_ROOT"] == "" // the candidate rules, if there are any
	if areBeside {
		s.PutCandidateBeside(rules)
	}
	for _, name := range []string{"RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"} {
		isUsed := s.RuntimeCandidate != "" && name != "RUNTIME_SUBDIRECTORY" && !areBeside // The candidate rules are there.
		if v := env[name]; v != "" && rules != "" && !isUsed {
			warnings = append(warnings, fmt.Sprintf("%s=%s has no effect: --config says where the rules are; remove one of "+
				"the two", name, v))
		}
	}
	if path := s.CandidatePath(); path != "" && rules != "" && settings.Overlap(rules, path) {
		return Config{}, fmt.Errorf(
			"RUNTIME_CANDIDATE_SUBDIRECTORY: %s overlaps with --config %s; name a directory beside it", path, rules)
	}
	return Config{Settings: s, SettingsWarnings: warnings, RulesPath: rules}, nil
}

// DivvyConfig reads the configuration of `ratelimit divvy` from environ, as ServeConfig
// does: divvy's own variables, one file of rules, divvy's statistics.
func DivvyConfig(environ []string, file string) (Config, error) {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".ini", ".json", ".yaml", ".yml":
	default:
		return Config{}, fmt.Errorf("divvy: %s: the name of a file of rules ends in .ini or .json, or in .yaml", file)
	}
	env := settings.NewEnvironment(environ)
	s, warnings, err := settings.ReadDivvy(env)
	if err != nil {
		return Config{}, fmt.Errorf("settings:\n%w", err)
	}
	warnings = append(warnings, env.Unknown(append(settings.Table(), settings.DivvyTable()...))...)
	return Config{
		Settings: s, SettingsWarnings: warnings, RulesPath: file, RequireOrderedList: true,
		OnReady: func(r Ready) {
			_, port, err := net.SplitHostPort(r.DivvyAddr.String())
			if err != nil {
				port = r.DivvyAddr.String()
			}
			// This is the line that divvy itself prints.
			fmt.Fprintf(r.Stdout, "Listening on port TCP port %s, %s\n", port, s.StoreText())
		},
	}, nil
}
