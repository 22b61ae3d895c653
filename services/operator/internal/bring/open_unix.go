//go:build unix

package bring

import "golang.org/x/sys/unix"

// nonblock keeps a named pipe from holding the import up.
const nonblock = unix.O_NONBLOCK
