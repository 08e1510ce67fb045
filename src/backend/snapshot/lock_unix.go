//go:build unix && !solaris && !aix

package snapshot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// lockFile creates the file at path if it does not exist, and locks it until it is closed or the process ends. It writes the
// number of the process to the file, so that the error of another process names it.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: create the directory, and let this process write to it", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(file, 20)) // The number is only for the message.
		err = fmt.Errorf("process %s uses the file and holds the lock %s: stop it, or give each process a file of its own",
			strings.TrimSpace(string(holder)), path)
	} else if err != nil {
		err = fmt.Errorf("cannot lock %s: %w: name a file on a file system with locks", path, err)
	} else if err = file.Truncate(0); err == nil {
		_, err = fmt.Fprintf(file, "%d\n", os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
