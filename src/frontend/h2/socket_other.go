//go:build !unix

package h2

import "errors"

// socket is not used on this system.
type socket struct{}

func openSocket(*conn) *socket { return nil }

func (*socket) readInto() (int, error) { return 0, errors.ErrUnsupported }

func (*socket) readMore() int { return 0 }
