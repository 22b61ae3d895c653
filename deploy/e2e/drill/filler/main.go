// Command filler is a service that tries to fill the disk through its log: it lengthens what its standard output and error lead to without
// writing, opens each again, and floods it. It appends a line to a report after each attempt, answers on its port, and runs until
// it is stopped. It is built and run by drills alone.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// keepSize is FALLOC_FL_KEEP_SIZE of fallocate(2): it takes room beyond the end of a file, and leaves its size.
const keepSize = 1

// lifetime bounds how long it runs, should nobody stop it.
const lifetime = 10 * time.Minute

// attempts are what is done to one descriptor. far is beyond any log's end.
var attempts = []struct {
	name string
	do   func(fd int, far, n int64) error
}{
	{"fallocate", func(fd int, far, n int64) error { return syscall.Fallocate(fd, 0, far, n) }},
	{"fallocate, keeping the size", func(fd int, far, n int64) error { return syscall.Fallocate(fd, keepSize, far, n) }},
	{"ftruncate", func(fd int, far, _ int64) error { return syscall.Ftruncate(fd, far) }},
	{"pwrite", func(fd int, far, _ int64) error { _, err := syscall.Pwrite(fd, []byte("far\n"), far); return err }},
	{"lseek", func(fd int, far, _ int64) error {
		_, err := syscall.Seek(fd, far, 0)
		return errors.Join(err, flood(fd, 1))
	}},
	{"a flood", func(fd int, _, n int64) error { return flood(fd, n) }},
}

func flood(fd int, n int64) error {
	for line := append(bytes.Repeat([]byte("y"), 32<<10-1), '\n'); n > 0; n -= int64(len(line)) {
		if _, err := syscall.Write(fd, line); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	port := flag.Uint("port", 0, "port on 127.0.0.1")
	n := flag.Int64("bytes", 0, "how many `bytes` an attempt takes")
	report := flag.String("report", "", "append a line to this `file` after each attempt")
	flag.Parse()
	signal.Ignore(syscall.SIGPIPE)
	time.AfterFunc(lifetime, func() { os.Exit(1) })
	go func() {
		_ = http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		os.Exit(1)
	}()
	for _, fd := range []int{1, 2} {
		for _, flags := range []int{-1, syscall.O_WRONLY, syscall.O_RDWR, syscall.O_WRONLY | syscall.O_APPEND, syscall.O_WRONLY | syscall.O_TRUNC} {
			for _, a := range attempts {
				note(*report, fmt.Sprintf("descriptor %d, flags %d, %s: %v", fd, flags, a.name, try(fd, flags, func(fd int) error { return a.do(fd, *n, *n) })))
			}
		}
	}
	note(*report, "done")
	select {} // until it is stopped
}

// try does something to a descriptor, or, unless flags is -1, to what opening it again gives.
func try(fd, flags int, do func(fd int) error) error {
	if flags < 0 {
		return do(fd)
	}
	again, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(again), syscall.Close(again))
}

func note(file, line string) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, line)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		os.Exit(1)
	}
}
