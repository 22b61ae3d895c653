package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// ForgetTyped drops what was typed at a terminal and not read yet.
func ForgetTyped(in any) {
	if f, ok := in.(*os.File); ok {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) // what is no terminal has nothing to forget
	}
}
