//go:build !unix

package bring

const nonblock = 0
