package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// machine is where and of what it was measured.
type machine struct {
	Commit   string `json:"commit"` // "unknown" outside of git
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	Date     string `json:"date"` // UTC
}

func examine(ctx context.Context, root string) machine {
	m := machine{
		Commit: "unknown", Go: runtime.Version(), CPU: runtime.GOARCH, Cores: runtime.NumCPU(),
		Date: time.Now().UTC().Format(time.DateOnly),
	}
	git := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		return cmd.Output()
	}
	if commit, err := git("rev-parse", "--short=12", "HEAD"); err == nil {
		m.Commit = strings.TrimSpace(string(commit))
		changes, err := git("status", "--porcelain", "--", "src", "go.mod", "go.sum")
		m.Modified = err != nil || len(changes) > 0
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if model := cpuModel(info); model != "" {
			m.CPU = model
		}
	}
	return m
}

// cpuModel is the first model of /proc/cpuinfo; not every architecture has one.
func cpuModel(info []byte) string {
	for line := range bytes.Lines(info) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(name)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}
