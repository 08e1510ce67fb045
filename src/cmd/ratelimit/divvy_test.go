package main

import (
	"strings"
	"testing"

	"ratelimit/src/settings"
	"ratelimit/src/tools/command"
)

func TestDivvyArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"a.ini", "b.ini"}} {
		if code, _, errOut := call(t, append([]string{"ratelimit", "divvy"}, args...)...); code != command.ExitInput ||
			!strings.Contains(errOut, "ratelimit divvy CONFIG") {
			t.Errorf("%q: exit %d, %s", args, code, errOut)
		}
	}
}

func TestDivvyHelp(t *testing.T) {
	_, help, _ := call(t, "ratelimit", "divvy", "--help")
	for _, v := range settings.DivvyTable() {
		if !strings.Contains(help, v.Name+" ") {
			t.Errorf("divvy --help lacks %s", v.Name)
		}
	}
}
