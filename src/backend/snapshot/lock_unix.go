//go:build unix && !solaris && !aix

package snapshot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lockBytes is the size of a lock file: the number of the process, padded with blanks, and an end of line.
const lockBytes = 20

// lockFile creates the file at path if it does not exist, and locks it until it is closed or the process ends. It
// writes the number of the process to the file, so that the error of another process names it.
//
// Whoever may write to the directory may put another file there. lockFile follows no link, and changes only a file that
// is like one of its own.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a link, which the service does not follow: remove it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: create the directory, and let this process write to it", err)
	}
	if err := lockOpened(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func lockOpened(file *os.File) error {
	content, err := readLock(file)
	if err != nil {
		return err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("process %s uses the file and holds the lock %s: stop it, or give each process a file of its own",
			content, file.Name())
	}
	if err != nil {
		return fmt.Errorf("cannot lock %s: %w: name a file on a file system with locks", file.Name(), err)
	}
	// It replaces any earlier number, so nothing is truncated.
	_, err = file.WriteAt(fmt.Appendf(nil, "%-*d\n", lockBytes-1, os.Getpid()), 0)
	return err
}

// readLock returns the number of the process in a lock file, "" if it is new. The error says that it is no lock file.
func readLock(file *os.File) (string, error) {
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	foreign := fmt.Errorf("%s is no lock file of the service, which does not change it: "+
		"remove it, or give MEMORY_SNAPSHOT another name", file.Name())
	if st, ok := info.Sys().(*syscall.Stat_t); !info.Mode().IsRegular() || info.Size() > lockBytes ||
		ok && st.Nlink > 1 {
		return "", foreign
	}
	content, err := io.ReadAll(io.NewSectionReader(file, 0, lockBytes))
	if err != nil {
		return "", err
	}
	number := strings.TrimSpace(string(content))
	if _, err := strconv.ParseUint(number, 10, 64); err != nil && number != "" {
		return "", foreign
	}
	return number, nil
}
