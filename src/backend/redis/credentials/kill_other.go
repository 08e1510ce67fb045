//go:build !unix

package credentials

import "os/exec"

// killWithChildren does nothing here: the end of the context kills cmd alone.
func killWithChildren(*exec.Cmd) {}
