// Package procfs reads what the kernel writes of programs in /proc, as proc(5) and cgroups(7) say. It trusts the kernel alone: what has
// another form, or may not be read, reads as nothing.
package procfs

import (
	"bytes"
	"io"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	maxProcesses   = 65536
	maxCommandLine = 128 << 10
)

// Processes goes through the processes below root, "/proc", with the content of one file of each. What may not be read is passed over.
func Processes(root, file string) iter.Seq2[int, string] {
	return func(yield func(pid int, content string) bool) {
		entries, err := os.ReadDir(root)
		if err != nil {
			return
		}
		for _, e := range entries[:min(len(entries), maxProcesses)] {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if raw, err := os.ReadFile(filepath.Join(root, e.Name(), file)); err == nil && !yield(pid, string(raw)) {
				return
			}
		}
	}
}

// Group is the control group in /proc/PID/cgroup: of version 2, or systemd's own of version 1.
func Group(text string) string {
	for controllers, path := range CGroups(text) {
		if controllers == "" || controllers == "name=systemd" {
			return path
		}
	}
	return ""
}

// CommandLine is a process's argument vector, nil where it cannot be read or is longer than 128 kB.
func CommandLine(root string, pid int) []string {
	f, err := os.Open(filepath.Join(root, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxCommandLine+1))
	if err != nil || len(raw) == 0 || len(raw) > maxCommandLine {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
}

// CGroups goes through /proc/PID/cgroup: the control group's path by its hierarchy's controllers, which are "" for version 2.
func CGroups(text string) iter.Seq2[string, string] {
	return func(yield func(controllers, path string) bool) {
		for line := range strings.Lines(text) {
			// hierarchy:controllers:path; a path may hold colons.
			parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
			if len(parts) == 3 && !yield(parts[1], parts[2]) {
				return
			}
		}
	}
}

// Stat are the fields of /proc/PID/stat from the third on, the state: the name before it may itself hold spaces and parentheses.
func Stat(raw []byte) []string {
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return nil
	}
	return strings.Fields(string(raw[end+1:]))
}

// Address reads "0100007F:1D07" of /proc/net/tcp: 32-bit words in the machine's order, which is little-endian wherever we run, and the
// port. An IPv4 address in an IPv6 one is an IPv4 address.
func Address(text string) (netip.AddrPort, bool) {
	address, port, ok := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || len(address) != 8 && len(address) != 32 {
		return netip.AddrPort{}, false
	}
	raw := make([]byte, 0, 16)
	for i := 0; i < len(address); i += 8 {
		word, err := strconv.ParseUint(address[i:i+8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		raw = append(raw, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	at, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(at.Unmap(), uint16(number)), ok
}

// BootID names this boot of the kernel.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}

// Socket is a line of the kernel's tables of TCP sockets.
type Socket struct {
	// Local and Remote are not valid where the line does not name one.
	Local, Remote netip.AddrPort
	// State is Established, Listening or another of the kernel's numbers. User and Inode are decimal.
	State, User, Inode string
}

// States of a socket.
const (
	Established = "01"
	Listening   = "0A"
)

// Sockets returns the TCP sockets that the kernel tells of under root, "/proc".
func Sockets(root string) ([]Socket, error) {
	var out []Socket
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(root, "net", table))
		if os.IsNotExist(err) && table == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		out = append(out, ParseSockets(text)...)
	}
	return out, nil
}

// ParseSockets reads a table, whose lines are "N: LOCAL:PORT REMOTE:PORT STATE QUEUES TIMER RETRIES UID TIMEOUT INODE …". It passes over
// lines that are none.
func ParseSockets(table []byte) []Socket {
	out := make([]Socket, 0, bytes.Count(table, []byte("\n")))
	for line := range strings.Lines(string(table)) {
		var fields [10]string // of twice as many: a busy host has tens of thousands of lines
		n := 0
		for field := range strings.FieldsSeq(line) {
			fields[n] = field
			if n++; n == len(fields) {
				break
			}
		}
		if n < len(fields) {
			continue
		}
		s := Socket{State: fields[3], User: fields[7], Inode: fields[9]}
		s.Local, _ = Address(fields[1])
		s.Remote, _ = Address(fields[2])
		out = append(out, s)
	}
	return out
}
