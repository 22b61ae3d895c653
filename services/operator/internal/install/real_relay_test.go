//go:build real

package install_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// collector is a SIEM: it takes records by syslog over TLS, and answers the end of each connection with its own.
type collector struct {
	net.Listener
	mu      sync.Mutex
	indexes []int
}

var indexOf = regexp.MustCompile(` index="(\d+)"`)

func (c *collector) serve() {
	for {
		conn, err := c.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(conn)
		for {
			length, err := in.ReadString(' ')
			if err != nil {
				break
			}
			n, err := strconv.Atoi(strings.TrimSpace(length))
			if err != nil || n > 8192 {
				break
			}
			message := make([]byte, n)
			if _, err := io.ReadFull(in, message); err != nil {
				break
			}
			if found := indexOf.FindSubmatch(message); found != nil {
				index, _ := strconv.Atoi(string(found[1]))
				c.mu.Lock()
				c.indexes = append(c.indexes, index)
				c.mu.Unlock()
			}
		}
		_ = conn.Close()
	}
}

// got are the indexes that came since the last time.
func (c *collector) got() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.indexes
	c.indexes = nil
	return out
}

// relayed adds a witness and the relay: the log is cosigned, and each record reaches a collector, also when the relay was stopped or killed.
func (h *installed) relayed() {
	if out, code := h.install("--apply", "--witness"); code != 0 {
		h.Fatalf("ended with %d:\n%s", code, out)
	}
	if out, code := h.install("--apply"); code != 0 || strings.Contains(out, "make ") || strings.Contains(out, "run ") {
		h.Errorf("a second run: %d\n%s", code, out)
	}
	h.eventually("the witness cosigns", func() error {
		if out, code := h.as("alice", nil, "durward", "status"); code != 0 || !strings.Contains(out, "cosigned by durward.local/witness/main at ") {
			return fmt.Errorf("%d: %s", code, out)
		}
		return nil
	})
	if out, _ := h.as("alice", nil, "durward", "doctor"); !regexp.MustCompile(`(?m)^✓ witnesses +cosigned by durward.local/witness/main`).MatchString(out) {
		h.Errorf("doctor says nothing of the witness:\n%s", out)
	}
	for name, unit := range map[string]string{"durward-relay": "durward-auditrelay", "durward-witness": "durward-auditwitness"} {
		u, err := user.Lookup(name)
		h.must(err)
		pid := strings.TrimSpace(h.root("systemctl", "show", "-P", "MainPID", unit))
		status, err := os.ReadFile("/proc/" + pid + "/status")
		h.must(err)
		for _, line := range []string{fmt.Sprintf("Uid:\t%s\t%s\t%s\t%s\n", u.Uid, u.Uid, u.Uid, u.Uid), "NoNewPrivs:\t1\n", "CapBnd:\t0000000000000000\n", "Seccomp:\t2\n"} {
			if !strings.Contains(string(status), line) {
				h.Errorf("%s has not %q:\n%s", unit, line, status)
			}
		}
		if out := strings.TrimSpace(h.root("systemd-analyze", "verify", "/etc/systemd/system/"+unit+".service")); out != "" {
			h.Errorf("systemd-analyze verify %s: %s", unit, out)
		}
	}
	for path, read := range map[string]string{"/etc/durward-witness/witness.key": "cat", "/var/lib/durward-witness": "ls", "/var/lib/durward-relay": "ls"} {
		for _, name := range []string{"alice", "durward-audit", "mallory"} {
			if out, code := h.as(name, nil, read, path); code == 0 {
				h.Errorf("%s reads %s: %s", name, path, out)
			}
		}
	}
	h.forwarded()
	// The witness is away: the log goes on, and operators are told.
	h.root("systemctl", "stop", "durward-auditwitness")
	if out, code := h.as("alice", nil, "durward", "audit", "verify"); code != 0 || !strings.Contains(out, "as durward.local/witness/main cosigned it when it had ") {
		h.Errorf("without the witness: %d, %s", code, out)
	}
	h.root("systemctl", "start", "durward-auditwitness")
}

// forwarded has the relay bring the log to a collector.
func (h *installed) forwarded() {
	pair := httptest.NewUnstartedServer(nil)
	pair.StartTLS()
	certificate := pair.TLS.Certificates[0]
	pair.Close()
	leaf, err := x509.ParseCertificate(certificate.Certificate[0])
	h.must(err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	h.must(err)
	siem := &collector{Listener: listener}
	defer siem.Close()
	go siem.serve()
	h.must(os.WriteFile("/etc/durward/siem-ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), 0o644))
	edit := func(path, old, text string) {
		h.Helper()
		b, err := os.ReadFile(path)
		h.must(err)
		if !strings.Contains(string(b), old) {
			h.Fatalf("%s has not %q:\n%s", path, old, b)
		}
		h.must(os.WriteFile(path, []byte(strings.Replace(string(b), old, text, 1)), 0o644))
		h.Cleanup(func() { h.must(os.WriteFile(path, b, 0o644)) }) // what installs next changes it
	}
	edit("/etc/durward/auditrelay.yaml", "forward: []", fmt.Sprintf("forward:\n  - {name: siem, syslog: %q, authorities: /etc/durward/siem-ca.pem}", listener.Addr()))
	edit("/etc/durward/audit.yaml", "log_level: info", "log_level: info\nforward: records")
	h.root("systemctl", "restart", "durward-audit", "durward-auditrelay")
	all := []int{-1}
	// grown waits until the log holds a record that the collector has not, and returns the newest one: the gateway records its end and its
	// start in its own time.
	grown := func(when string) (newest int) {
		h.Helper()
		h.eventually(when+": alice's program finds them in the log", func() (err error) {
			out, code := h.as("alice", nil, "durward", "audit", "search", "--limit", "1", "--json")
			found := regexp.MustCompile(`"index": "?(\d+)`).FindStringSubmatch(out)
			if code != 0 || found == nil {
				return fmt.Errorf("search: %d, %s", code, out)
			}
			if newest, err = strconv.Atoi(found[1]); newest <= slices.Max(all) {
				return fmt.Errorf("the newest is %d still", newest)
			}
			return err
		})
		return newest
	}
	// reach waits until the collector has them.
	reach := func(when string) (came []int) {
		h.Helper()
		newest := grown(when)
		h.eventually(when, func() error {
			if came = append(came, siem.got()...); !slices.Contains(came, newest) {
				return fmt.Errorf("record %d is not there; %d came", newest, len(came))
			}
			return nil
		})
		all = append(all, came...)
		return came
	}
	reach("records reach the collector")
	var cursor os.FileInfo
	h.eventually("the cursor follows what was sent", func() (err error) {
		cursor, err = os.Stat("/var/lib/durward-relay/forwarded-siem")
		return err
	})
	u, err := user.Lookup("durward-relay")
	h.must(err)
	if stat, ok := cursor.Sys().(*syscall.Stat_t); !ok || strconv.Itoa(int(stat.Uid)) != u.Uid || cursor.Mode().Perm() != 0o600 {
		h.Errorf("the cursor is %v", cursor.Mode())
	}
	newest := slices.Max(all)
	// Stopped, while the log grows; killed, so that systemd starts it again.
	h.root("systemctl", "stop", "durward-auditrelay")
	h.root("systemctl", "restart", "durward-gateway")
	grown("records from while the relay was stopped")
	h.root("systemctl", "start", "durward-auditrelay")
	if came := reach("records from while the relay was stopped"); slices.Min(came) <= newest-64 {
		h.Errorf("after a restart it begins at %d again, and was at %d", slices.Min(came), newest)
	}
	h.root("systemctl", "kill", "--signal=KILL", "durward-auditrelay")
	h.root("systemctl", "restart", "durward-gateway")
	reach("records from after the relay was killed")
	slices.Sort(all)
	all = slices.Compact(all)[1:]
	if len(all) != all[len(all)-1]+1 {
		h.Errorf("of the records to %d, %d came", all[len(all)-1], len(all))
	}
	h.eventually("all is well, and the log is forwarded", func() error { // the gateway was told to start again, and the relay began anew
		if out, code := h.as("alice", nil, "durward", "status"); code != 0 || !strings.Contains(out, "forwarded to siem") {
			return fmt.Errorf("status: %d, %s", code, out)
		}
		return nil
	})
}
