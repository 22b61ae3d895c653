package drill

import (
	"bytes"
	"context"
	"crypto/sha256"
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
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
)

// secretLines look for the values of stored credentials wherever they have no business.
func secretLines() []Line {
	weak := map[string]string{harness.Executor: "handover"}
	return []Line{{"secrets", weak, secretsInUse}, {"secrets-vault-killed", weak, secretsUnderKills}}
}

const (
	needy = "demo-needy"
	// perStart is how many credentials a start of needy gives away.
	perStart = 16
)

// secrets is the drill's canaries: each value holds the marker, which nothing else on this machine does.
type secrets struct {
	*world
	marker string
	// forms are the marker in nine encodings.
	forms map[string][]byte
	// passphrase is what the credentials' keys are kept under; empty: a file of the vault's.
	passphrase string
	// versions are the newest values' numbers, by credential.
	mu       sync.Mutex
	versions [perStart]int
	found    map[string]bool
	capture  func() (packets int)
	began    time.Time
}

func newSecrets(w *world) *secrets {
	s := &secrets{world: w, found: map[string]bool{}, began: time.Now().Add(-time.Second)}
	// Made anew, and never part of this program's arguments, files or environment.
	s.marker = "durward-canary-" + grant.NewID()
	raw := []byte(s.marker)
	wide := make([]byte, 0, 2*len(raw))
	for _, unit := range utf16.Encode([]rune(s.marker)) {
		wide = binary.LittleEndian.AppendUint16(wide, unit)
	}
	reversed := slices.Clone(raw)
	slices.Reverse(reversed)
	s.forms = map[string][]byte{
		"as it is": raw, "hex": []byte(hex.EncodeToString(raw)), "HEX": []byte(strings.ToUpper(hex.EncodeToString(raw))),
		"base32": []byte(base32.StdEncoding.EncodeToString(raw[:35])), "UTF-16": wide, "reversed": reversed,
	}
	for i := range 3 { // wherever in a text it begins
		core := base64.StdEncoding.EncodeToString(slices.Concat(make([]byte, i), raw, make([]byte, 3)))
		s.forms[fmt.Sprintf("base64, %d", i)] = []byte(core[4 : len(core)-8])
	}
	script := filepath.Join(w.h.Dir, "needy.sh")
	w.must(os.WriteFile(script, []byte("#!/bin/sh\nfor i in $(seq 0 "+strconv.Itoa(perStart-1)+`); do eval p=\$CANARY_$i; sha256sum <"$p" | cut -d' ' -f1; done >"$1.new"
mv "$1.new" "$1"
exec "$2" -port "$3"
`), 0o700)) // #nosec G306 -- a program
	var names []string
	for i := range perStart {
		names = append(names, name(i))
	}
	text := w.h.ReadFile("config/catalogue.yaml")
	if !strings.Contains(text, needy) {
		w.h.WriteFile("config/catalogue.yaml", text+fmt.Sprintf("  - {id: %s, name: Needy, driver: process, argv: [%q, %q, %q, %q], writes: [%q], credentials: [%s], port: %d, health: {path: /health}, stop_timeout_s: 2}\n",
			needy, script, s.seen(), filepath.Join(w.h.Bin, "durward-demo"), strconv.Itoa(w.h.Port(4)), s.seen(), strings.Join(names, ", "), w.h.Port(4)))
	}
	harness.Eventually(w.t, "the executor knows the new entry", func() error { _, err := w.preview("start_service", needy); return err })
	list, err := s.stored()
	w.must(err)
	for i := range perStart {
		s.versions[i] = list[name(i)]
	}
	s.listen()
	return s
}

func name(i int) string         { return fmt.Sprintf("canary-%d", i) }
func (s *secrets) seen() string { return filepath.Join(s.h.Dir, "needy-seen") }

// value is a credential's, by its number.
func (s *secrets) value(i, version int) []byte {
	return fmt.Appendf(nil, "%s-%d-%d", s.marker, i, version)
}

// change signs for a change of a stored credential and sends it.
func (s *secrets) change(c *statement.Credential, value []byte) error {
	now := time.Now()
	req := &vaultv1.ChangeCredentialRequest{Value: value}
	if value != nil {
		req.Salt = bytes.Repeat([]byte{1}, statement.CommitmentKey)
		c.Commitment = statement.Commitment(req.GetSalt(), c.Name, c.Version, value)
	}
	ctx, cancel := s.ctx(callTime)
	defer cancel()
	status, err := vaultv1.NewControlServiceClient(s.operatorVault).GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	req.Statement = s.sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindCredential, ID: grant.NewID(), Operator: s.h.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: status.GetEpoch(), Audience: s.h.Identity(harness.Vault).String(), Credential: c,
	}, s.signer)
	_, err = vaultv1.NewCredentialServiceClient(s.operatorVault).ChangeCredential(ctx, req)
	return err
}

// renew gives a credential its next value.
func (s *secrets) renew(i int) error {
	s.mu.Lock()
	version := s.versions[i] + 1
	s.mu.Unlock()
	c := &statement.Credential{Action: statement.CredentialRotate, Name: name(i), Version: version}
	if version == 1 {
		c.Action, c.Delivery, c.Variable = statement.CredentialAdd, statement.DeliveryFile, fmt.Sprintf("CANARY_%d", i)
	}
	err := s.change(c, s.value(i, version))
	if err == nil && version == 1 {
		err = s.change(&statement.Credential{Action: statement.CredentialGrant, Name: name(i), CredentialGrants: statement.CredentialGrants{
			Sink: s.h.Identity(harness.Executor).String(), Services: []string{needy},
		}}, nil)
	}
	if err == nil {
		s.mu.Lock()
		s.versions[i] = version
		s.mu.Unlock()
	}
	return err
}

// stored are the newest values' numbers, as the vault has them.
func (s *secrets) stored() (map[string]int, error) {
	ctx, cancel := s.ctx(callTime)
	defer cancel()
	list, err := vaultv1.NewCredentialServiceClient(s.operatorVault).ListCredentials(ctx, &vaultv1.ListCredentialsRequest{})
	out := map[string]int{}
	for _, c := range list.GetCredentials() {
		out[c.GetName()] = int(c.GetVersions()[0].GetVersion())
	}
	return out, err
}

// holds is what needy must have seen when it starts now.
func (s *secrets) holds() (digests string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, version := range s.versions {
		digests += fmt.Sprintf("%x\n", sha256.Sum256(s.value(i, version)))
	}
	return digests
}

// begin starts needy, which was stopped, and returns what it saw.
func (s *secrets) begin() (string, error) {
	if err := os.Remove(s.seen()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := s.command("start_service", needy); err != nil {
		return "", err
	}
	var saw string
	err := harness.Poll(func() error {
		raw, err := os.ReadFile(s.seen())
		saw = string(raw)
		return err
	})
	return saw, err
}

// look notes where a text holds the marker.
func (s *secrets) look(place string, raw []byte) {
	for form, pattern := range s.forms {
		if bytes.Contains(raw, pattern) {
			s.mu.Lock()
			s.found[place+", "+form] = true
			s.mu.Unlock()
		}
	}
}

// memories searches all that the gateway, the executor, audit and the keepers of logs hold in memory.
func (s *secrets) memories() {
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

func (s *secrets) memory(who string, pid int) {
	s.t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return // it has ended
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return
	}
	defer mem.Close()
	read := 0
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") || strings.Contains(line, "[v") {
			continue
		}
		if raw, err := io.ReadAll(io.NewSectionReader(mem, from, to-from)); err == nil {
			read += len(raw)
			s.look("the memory of the "+who, raw)
		}
	}
	if read < 1<<18 && !strings.HasPrefix(who, "a child") {
		s.t.Fatalf("of the %s's memory only %d bytes could be read", who, read)
	}
}

// elsewhere searches files, temporary files and files in memory, every process's environment and arguments, the logs, the metrics and what
// crossed the loopback interface.
func (s *secrets) elsewhere() {
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
	for _, role := range harness.Roles() {
		s.look("the log of the "+role, []byte(s.h.Process(role).Log()))
		answer, err := http.Get("http://" + s.h.HealthAddress(role) + "/metrics")
		s.must(err)
		raw, err := io.ReadAll(answer.Body)
		s.must(errors.Join(err, answer.Body.Close()))
		if len(raw) < 1000 {
			s.t.Fatalf("the metrics of the %s are %q", role, raw)
		}
		s.look("the metrics of the "+role, raw)
	}
}

// listen begins to search what crosses the loopback interface. Where this user may not, the line's note says so.
func (s *secrets) listen() {
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
				s.look("a packet on loopback", buffer[:n])
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

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// effects ends the search and says what was found.
func (s *secrets) effects() int {
	packets := s.capture()
	s.note = fmt.Sprintf("%d packets searched", packets)
	if packets < 0 {
		s.note = "the loopback interface could not be searched"
	}
	for place := range s.found {
		s.t.Logf("a credential's value is in %s", place)
	}
	return len(s.found)
}

// secretsInUse stores many values, has a service started with them, sixteen at a time, and searches for them at every moment of that. Its
// effects are the places where one was found beyond the vault, the launcher and the service.
func secretsInUse(w *world) (trials, effects int) {
	w.arrange()
	s := newSecrets(w)
	ctx, stop := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { // load
		for ctx.Err() == nil {
			_ = w.command("start_service", idle) // what it does is of no matter
			_ = w.command("stop_service", idle)
		}
	})
	running.Go(func() {
		for ctx.Err() == nil {
			s.memories()
			time.Sleep(20 * time.Millisecond) // many moments, and not all of the processor
		}
	})
	for range w.tries(1008, 64) / perStart {
		for i := range perStart {
			w.must(s.renew(i))
			trials++
		}
		saw, err := s.begin()
		w.must(err)
		if saw != s.holds() {
			w.t.Fatalf("the service saw %q, and nothing is proved", saw)
		}
		w.must(w.command("stop_service", needy))
		s.mu.Lock()
		caught := w.caught(len(s.found))
		s.mu.Unlock()
		if caught {
			break
		}
	}
	stop()
	running.Wait()
	s.memories()
	s.elsewhere()
	w.kill(idle)
	return trials, s.effects()
}
