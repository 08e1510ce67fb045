// Package secrets reads secrets that clients must send from a file, and reads it again while the service runs.
package secrets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ratelimit/src/files"
)

// maxFileBytes is the size of the largest file of secrets.
const maxFileBytes = 64 << 10

// maxSecrets is how many secrets may be valid at a time: two, so that clients can change from one to the other.
const maxSecrets = 2

const checkInterval = time.Second

// File is a file with one secret in each line.
type File struct {
	path    string
	reads   files.Reads
	current atomic.Pointer[[]string]
}

// Open reads a file. An error has its path and nothing of its text.
func Open(path string) (*File, error) {
	f := &File{path: path}
	list, err := f.read(context.Background())
	if err != nil {
		return nil, err
	}
	f.current.Store(&list)
	return f, nil
}

// Valid returns the secrets that are valid now, at least one. The caller must not change them.
func (f *File) Valid() []string { return *f.current.Load() }

// Run reads the file again every second until ctx ends; its error is always nil. It calls onChange with nil after the
// secrets changed, and with an error when the file becomes unusable: the old ones then stay valid.
func (f *File) Run(ctx context.Context, onChange func(error)) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		list, err := f.read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failed:
			onChange(err)
		case err == nil && (failed || !slices.Equal(list, f.Valid())):
			f.current.Store(&list)
			onChange(nil)
		}
		failed = err != nil
	}
}

func (f *File) read(ctx context.Context) ([]string, error) {
	data, err := files.Read(ctx, &f.reads, func() ([]byte, error) {
		if info, err := os.Stat(f.path); err == nil && info.Size() > maxFileBytes {
			return nil, fmt.Errorf("%s: larger than %d bytes", f.path, maxFileBytes)
		}
		return os.ReadFile(f.path)
	})
	if err != nil {
		if timeout, ok := errors.AsType[*files.TimeoutError](err); ok {
			err = fmt.Errorf("%s: %w", f.path, timeout)
		}
		return nil, err
	}
	var list []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			list = append(list, line)
		}
	}
	if len(list) == 0 || len(list) > maxSecrets {
		return nil, fmt.Errorf("%s: %d lines with a secret: write one, or two while clients change from one to the other",
			f.path, len(list))
	}
	return list, nil
}
