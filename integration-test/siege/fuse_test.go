//go:build linux

package siege

import (
	little "encoding/binary" // binary is the program
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Requests of FUSE's protocol that a file needs.
const (
	fuseForget    = 2
	fuseGetAttr   = 3
	fuseOpen      = 14
	fuseRead      = 15
	fuseRelease   = 18
	fuseFlush     = 25
	fuseInit      = 26
	fuseInterrupt = 36
)

// hungFile mounts a file system that consists of one file, which can be opened and
// whose reads are never answered. To remove it leaves reads as they are; to release
// it ends them.
func hungFile(path string) (remove, release func() error, err error) {
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		return nil, nil, err
	}
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("/dev/fuse: %w", err), os.Remove(path))
	}
	options := fmt.Sprintf("fd=%d,rootmode=100644,user_id=%d,group_id=%d,allow_other", fd, os.Getuid(), os.Getgid())
	if err := syscall.Mount("siege", path, "fuse", syscall.MS_NODEV|syscall.MS_NOSUID, options); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("mounting a file system: %w", err), syscall.Close(fd), os.Remove(path))
	}
	f := os.NewFile(uintptr(fd), "/dev/fuse") // Its Close ends a Read that waits, which keeps the file system alive.
	go answerFuse(f)
	unmount := func() error {
		if err := syscall.Unmount(path, 2); err != nil { // MNT_DETACH
			return fmt.Errorf("unmounting: %w", err)
		}
		return os.Remove(path)
	}
	return unmount, f.Close, nil
}

// answerFuse answers until the file system is gone.
func answerFuse(f *os.File) {
	request := make([]byte, 256<<10)
	for {
		n, err := f.Read(request)
		if errors.Is(err, syscall.ENOENT) {
			continue // the request was taken back
		}
		if err != nil || n < 40 {
			return
		}
		le := little.LittleEndian
		opcode, unique := le.Uint32(request[4:]), le.Uint64(request[8:])
		errno, body := syscall.Errno(0), []byte(nil)
		switch opcode {
		case fuseInit:
			body = make([]byte, 64)
			le.PutUint32(body, 7)         // major
			le.PutUint32(body[4:], 31)    // minor
			le.PutUint32(body[20:], 4096) // the largest write
		case fuseGetAttr:
			body = fileAttributes()
		case fuseOpen:
			body = make([]byte, 16)
			le.PutUint32(body[8:], 1) // no cache
		case fuseFlush, fuseRelease:
		case fuseRead, fuseForget, fuseInterrupt:
			continue
		default:
			errno = syscall.ENOSYS
		}
		reply := make([]byte, 16, 16+len(body))
		le.PutUint32(reply, uint32(16+len(body)))
		le.PutUint32(reply[4:], uint32(-int32(errno)))
		le.PutUint64(reply[8:], unique)
		if _, err := f.Write(append(reply, body...)); err != nil && !errors.Is(err, syscall.ENOENT) {
			return
		}
	}
}

// fileAttributes are those of a regular file of 100 bytes.
func fileAttributes() []byte {
	le := little.LittleEndian
	body := make([]byte, 16+88)
	a := body[16:]
	le.PutUint64(a, 1)                              // inode
	le.PutUint64(a[8:], 100)                        // size
	le.PutUint64(a[32:], uint64(time.Now().Unix())) // modified
	le.PutUint32(a[60:], syscall.S_IFREG|0o644)     // mode
	le.PutUint32(a[64:], 1)                         // links
	le.PutUint32(a[80:], 4096)                      // block
	return body
}
