// Package measured says where and of what something was measured, and writes documents with the figures.
package measured

import (
	"bytes"
	"encoding/csv"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"
	"time"
)

// Machine is where and of what it was measured.
type Machine struct {
	Commit   string `json:"commit"`   // "unknown" outside of git
	Modified bool   `json:"modified"` // true if src or the modules have changes that are not committed
	Go       string `json:"go"`
	CPU      string `json:"cpu"` // the model, or the architecture
	Cores    int    `json:"cores"`
	Date     string `json:"date"` // UTC
}

// ThisMachine describes this machine and the checkout at root.
func ThisMachine(root string) Machine {
	m := Machine{
		Commit: "unknown", Go: runtime.Version(), CPU: runtime.GOARCH, Cores: runtime.NumCPU(),
		Date: time.Now().UTC().Format(time.DateOnly),
	}
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	if commit, err := git("rev-parse", "--short=12", "HEAD"); err == nil {
		m.Commit = commit
		changes, err := git("status", "--porcelain", "--", "src", "go.mod", "go.sum")
		m.Modified = err != nil || changes != ""
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if model := cpuModel(info); model != "" {
			m.CPU = model
		}
	}
	return m
}

// cpuModel returns the first model of /proc/cpuinfo; not every architecture has one.
func cpuModel(info []byte) string {
	for line := range bytes.Lines(info) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(name)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// Markdown returns a table whose first row is the head. Cells may hold any text on one line.
func Markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.ReplaceAll(strings.Join(row, "\x00"), "|", `\|`) + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return strings.TrimSuffix(strings.ReplaceAll(b.String(), "\x00", " | "), "\n")
}

// Document returns the text that a template gives for data.
func Document(name, text string, data any) ([]byte, error) {
	t, err := template.New(name).Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, data)
	return b.Bytes(), err
}

// WriteFiles writes the document to root/name.md, and rows to root/name.csv.
func WriteFiles(root, name, text string, data any, rows [][]string) error {
	document, err := Document(name, text, data)
	if err != nil {
		return err
	}
	var figures bytes.Buffer
	if err := csv.NewWriter(&figures).WriteAll(rows); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, name+".csv"), figures.Bytes(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, name+".md"), document, 0o644)
}
