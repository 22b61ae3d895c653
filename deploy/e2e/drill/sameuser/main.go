// Command sameuser is a program of the user that an agent runs as, and does to an installation of Durward what such a program
// might: it reads keys, connects to sockets and ports, opens the operator's signing key, edits rules, signals and looks into
// processes. It says on standard output, as JSON, how often it tried and what it achieved. It is built and run by drills alone.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// list is a flag that may be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// report is what the program says.
type report struct {
	Trials  int      `json:"trials"`
	Effects []string `json:"effects"`
}

func (r *report) effect(format string, args ...any) {
	r.Effects = append(r.Effects, fmt.Sprintf(format, args...))
}

func main() {
	var read, write, sockets, ports, processes, keys, commands list
	flag.Var(&read, "read", "`file`, or folder with all that is in it, to look for keys in")
	flag.Var(&write, "write", "`file` to change or to replace")
	flag.Var(&sockets, "socket", "Unix socket `path` to connect to")
	flag.Var(&ports, "port", "`host:port` to connect to")
	flag.Var(&processes, "process", "`pid` to signal and to look into")
	flag.Var(&keys, "sign", "signing key `file` to open without a passphrase")
	flag.Var(&commands, "run", "`command` line, as a JSON list, that must not succeed")
	flag.Parse()
	r := &report{Effects: []string{}}
	for _, path := range read {
		r.readAll(path)
	}
	for _, path := range write {
		r.edit(path)
	}
	for _, path := range sockets {
		r.connect("unix", path)
	}
	for _, address := range ports {
		r.connect("tcp", address)
	}
	for _, pid := range processes {
		r.process(pid)
	}
	for _, file := range keys {
		r.sign(file)
	}
	for _, command := range commands {
		r.run(command)
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// secret is what keys of Durward look like: PEM and OpenSSH, signed-note keys, grant keys, tokens.
var secret = regexp.MustCompile(`PRIVATE KEY|PRIVATE\+KEY|grant-key|^durward[-_ ]`)

// readAll reads everything that can be reached from path. A readable file that holds a key or token is an effect.
func (r *report) readAll(path string) {
	// A folder that cannot be listed may let through who knows a name.
	_ = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		r.Trials++
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // what cannot be read is no effect
		}
		f, err := os.Open(file)
		if err != nil {
			return nil //nolint:nilerr // what cannot be read is no effect
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, 1<<20))
		if err == nil && (secret.Match(b) || filepath.Base(file) == "token" && len(b) > 0) {
			r.effect("reads the key %s", file)
		}
		return nil
	})
}

// edit opens a file for writing, and puts a file beside it as a replacement is put.
func (r *report) edit(path string) {
	r.Trials += 2
	if f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		_ = f.Close()
		r.effect("can change %s", path)
	}
	beside := path + ".sameuser"
	if f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		_ = f.Close()
		_ = os.Remove(beside)
		r.effect("can replace %s", path)
	}
}

// patience is how long whoever listens has to close a connection that it does not want.
const patience = 700 * time.Millisecond

// connect connects, and has achieved something where the connection is kept.
func (r *report) connect(network, address string) {
	r.Trials++
	conn, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return
	}
	_, err = conn.Read(make([]byte, 1))
	var slow net.Error
	if err == nil || errors.As(err, &slow) && slow.Timeout() {
		r.effect("is let in at %s", address)
	}
}

// process signals a process and opens what would let it take it over.
func (r *report) process(pid string) {
	r.Trials += 3
	number, err := strconv.Atoi(pid)
	if err != nil {
		return
	}
	if syscall.Kill(number, syscall.SIGCONT) == nil {
		r.effect("can signal process %s", pid)
	}
	for _, file := range []string{"mem", "environ"} {
		if f, err := os.Open("/proc/" + pid + "/" + file); err == nil {
			_ = f.Close()
			r.effect("can open %s of process %s", file, pid)
		}
	}
}

// sign opens the signing key as it is.
func (r *report) sign(file string) {
	r.Trials++
	b, err := os.ReadFile(file)
	if err != nil {
		return
	}
	if _, err := ssh.ParseRawPrivateKey(b); err == nil {
		r.effect("can sign with %s", file)
	}
}

// run runs a command without a terminal and without input.
func (r *report) run(line string) {
	r.Trials++
	var argv []string
	if err := json.Unmarshal([]byte(line), &argv); err != nil || len(argv) == 0 {
		return
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(nil)
	if out, err := cmd.CombinedOutput(); err == nil {
		r.effect("%s: %s", strings.Join(argv, " "), bytes.TrimSpace(out))
	}
}
