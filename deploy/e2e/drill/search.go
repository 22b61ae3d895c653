package drill

import (
	"bytes"
	"context"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"durward.internal/deploy/e2e/harness"
)

// search looks for values wherever they have no business: in memory, files, environments, arguments, logs, metrics, traces and packets.
// Each value holds one of its markers, which nothing else on this machine does.
type search struct {
	*world
	// forms are the markers in nine encodings each.
	forms map[string][]byte
	// source is the port of what the values come from over loopback: packets from and to it hold them; 0: none does.
	source  uint16
	mu      sync.Mutex
	found   map[string]bool
	capture func() (packets int)
	began   time.Time
}

func newSearch(w *world, source uint16, markers ...string) *search {
	s := &search{world: w, source: source, forms: map[string][]byte{}, found: map[string]bool{}, began: time.Now().Add(-time.Second)}
	for n, marker := range markers {
		raw := []byte(marker)
		wide := make([]byte, 0, 2*len(raw))
		for _, unit := range utf16.Encode([]rune(marker)) {
			wide = binary.LittleEndian.AppendUint16(wide, unit)
		}
		reversed := slices.Clone(raw)
		slices.Reverse(reversed)
		forms := map[string][]byte{
			"as it is": raw, "hex": []byte(hex.EncodeToString(raw)), "HEX": []byte(strings.ToUpper(hex.EncodeToString(raw))),
			"base32": []byte(base32.StdEncoding.EncodeToString(raw[:len(raw)/5*5])), "UTF-16": wide, "reversed": reversed,
		}
		for i := range 3 { // wherever in a text it begins
			core := base64.StdEncoding.EncodeToString(slices.Concat(make([]byte, i), raw, make([]byte, 3)))
			forms[fmt.Sprintf("base64, %d", i)] = []byte(core[4 : len(core)-8])
		}
		for form, pattern := range forms {
			s.forms[fmt.Sprintf("marker %d, %s", n, form)] = pattern
		}
	}
	s.listen()
	return s
}

// watch searches memory at many moments, until ctx ends.
func (s *search) watch(ctx context.Context) {
	for ctx.Err() == nil {
		s.memories()
		time.Sleep(20 * time.Millisecond) // not all of the processor
	}
}

// places is how many were found so far.
func (s *search) places() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.found)
}

// look notes where a text holds the marker.
func (s *search) look(place string, raw []byte) {
	for form, pattern := range s.forms {
		if bytes.Contains(raw, pattern) {
			s.mu.Lock()
			s.found[place+", "+form] = true
			s.mu.Unlock()
		}
	}
}

// memories searches all that the gateway, the executor, audit and the keepers of logs hold in memory.
func (s *search) memories() {
	services := s.h.ServicePIDs()
	for _, role := range []string{harness.Gateway, harness.Executor, harness.Audit} {
		pid := s.h.Process(role).PID()
		s.memory(role, pid)
		for _, child := range children(pid) {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
			if err == nil && !slices.Contains(services, child) && !bytes.Contains(line, []byte("\x00launch\x00")) {
				s.memory("a child of the "+role, child)
			}
		}
	}
}

func children(pid int) (out []int) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid))
	if err != nil {
		return nil
	}
	for _, word := range strings.Fields(string(raw)) {
		if child, err := strconv.Atoi(word); err == nil {
			out = append(out, child)
		}
	}
	return out
}

func (s *search) memory(who string, pid int) {
	s.t.Helper()
	read := readMemory(pid, func(raw []byte) { s.look("the memory of the "+who, raw) })
	if read >= 0 && read < 1<<18 && !strings.HasPrefix(who, "a child") {
		s.t.Fatalf("of the %s's memory only %d bytes could be read", who, read)
	}
}

// readMemory gives what a process holds, area by area, and returns how many bytes that was; -1: the process has ended.
func readMemory(pid int, look func(raw []byte)) (read int) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return -1
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return -1
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") || strings.Contains(line, "[v") {
			continue
		}
		if raw, err := io.ReadAll(io.NewSectionReader(mem, from, to-from)); err == nil {
			read += len(raw)
			look(raw)
		}
	}
	return read
}

// elsewhere searches files, temporary files and files in memory, every process's environment and arguments, the logs, the metrics, the traces and what
// crossed the loopback interface.
func (s *search) elsewhere() {
	s.t.Helper()
	files := 0
	for _, dir := range []string{s.h.Dir, "/dev/shm", os.TempDir()} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil //nolint:nilerr // others' files come and go
			case entry.IsDir() && dir != s.h.Dir && path != dir && !strings.Contains(strings.ToLower(entry.Name()), "durward"):
				return filepath.SkipDir // of other programs
			case !entry.Type().IsRegular():
				return nil
			}
			if info, err := entry.Info(); err != nil || info.ModTime().Before(s.began) {
				return nil //nolint:nilerr // as above, and what was there before
			}
			if raw, err := os.ReadFile(path); err == nil {
				files++
				s.look(path, raw)
			}
			return nil
		})
		s.must(err)
	}
	if files < 5 {
		s.t.Fatalf("only %d files were searched", files)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	s.must(err)
	for _, proc := range processes {
		for _, file := range []string{"environ", "cmdline"} {
			if raw, err := os.ReadFile(filepath.Join(proc, file)); err == nil {
				s.look(file+" of "+proc, raw)
			}
		}
	}
	roles := harness.Roles()
	if s.out != nil {
		roles = append(roles, harness.Egress)
	}
	for _, role := range roles {
		s.look("the log of the "+role, []byte(s.h.Process(role).Log()))
		for _, page := range []string{"metrics", "traces"} {
			answer, err := http.Get("http://" + s.h.HealthAddress(role) + "/" + page)
			s.must(err)
			raw, err := io.ReadAll(answer.Body)
			s.must(errors.Join(err, answer.Body.Close()))
			if answer.StatusCode != http.StatusOK || page == "metrics" && len(raw) < 1000 { // of nothing there are no traces
				s.t.Fatalf("the %s of the %s are %q", page, role, raw)
			}
			s.look("the "+page+" of the "+role, raw)
		}
	}
}

// listen begins to search what crosses the loopback interface. Where this user may not, the line's note says so.
func (s *search) listen() {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
	if err != nil {
		s.capture = func() int { return -1 }
		return
	}
	tick := unix.Timeval{Usec: 100_000}
	s.must(errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tick),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 16<<20), unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: 1})))
	stop, done, packets := make(chan struct{}), make(chan struct{}), 0
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<17)
		for {
			if n, _, err := unix.Recvfrom(fd, buffer, 0); err == nil {
				packets++
				if packet := buffer[:n]; !s.ofSource(packet) {
					s.look("a packet on loopback", packet)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	s.capture = sync.OnceValue(func() int { close(stop); <-done; s.must(unix.Close(fd)); return packets })
	s.t.Cleanup(func() { s.capture() })
}

// ofSource reports whether a packet goes to or comes from where the values come from: TCP in IPv4, behind Ethernet's 14 bytes.
func (s *search) ofSource(packet []byte) bool {
	if s.source == 0 || len(packet) < 34 || packet[14]>>4 != 4 || packet[23] != unix.IPPROTO_TCP {
		return false
	}
	tcp := packet[14+int(packet[14]&15)*4:]
	return len(tcp) >= 4 && (binary.BigEndian.Uint16(tcp) == s.source || binary.BigEndian.Uint16(tcp[2:]) == s.source)
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// effects ends the search and says what was found.
func (s *search) effects() int {
	if packets := s.capture(); packets < 0 {
		s.note += "the loopback interface could not be searched"
	} else {
		s.note += fmt.Sprintf("%d packets searched", packets)
	}
	for place := range s.found {
		s.t.Logf("a value is in %s", place)
	}
	return len(s.found)
}
