package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/platformtest/testfile"
)

// opening is what an agent program says first. Nobody listens at the gateway's address, and the bridge says so in its own words:
// whoever reads them knows that it was the bridge, and nothing else, that ran.
const (
	opening    = `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}` + "\n"
	fromBridge = "Durward is not running"
)

// remote is an installation with a client whose bridge may be started from elsewhere.
func remote(t *testing.T) (program string, h installdir.Home) {
	t.Helper()
	program, err := exec.LookPath("durward")
	if err != nil {
		t.Fatal(err)
	}
	h, err = installdir.At(filepath.Join(t.TempDir(), "it's a home"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Init(installdir.Options{Development: true, Operator: "alice", BasePort: 29430}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(h.Client("remote"), "remote", "cli", "READ", false); err != nil {
		t.Fatal(err)
	}
	return program, h
}

// TestForcedCommand: under a forced command the bridge looks at nothing of what the other side wanted to run or set.
func TestForcedCommand(t *testing.T) {
	program, h := remote(t)
	trace := filepath.Join(t.TempDir(), "ran")
	for _, wanted := range []string{"touch " + trace, "durward approve K7F3 --yes", "$(touch " + trace + ")"} {
		cmd := exec.CommandContext(t.Context(), program, client.Bridge(h.Dir, "remote")...)
		cmd.Env = append(os.Environ(), "SSH_ORIGINAL_COMMAND="+wanted, "SSH_CONNECTION=192.0.2.1 1 192.0.2.2 22", "DURWARD_HOME=/elsewhere")
		cmd.Stdin = strings.NewReader(opening)
		out, err := cmd.Output()
		if err != nil || !bytes.Contains(out, []byte(fromBridge)) || bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%q: %v, %s", wanted, err, out)
		}
	}
	if _, err := os.Stat(trace); err == nil {
		t.Error("what the other side asked for was run")
	}
}

// TestForcedCommandOverSSH: with the line of `durward client connect --ssh`, a real sshd lets the key speak for its client and do
// nothing else: no other command, no terminal, no forwarding, no file transfer.
func TestForcedCommandOverSSH(t *testing.T) {
	const sshd = "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		t.Skip("openssh-server is not installed; TestForcedCommand tries the same without it")
	}
	program, h := remote(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"host", "key"} {
		if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file(name)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	public := testfile.Read(t, file("key.pub"))
	line, err := client.AuthorizedKey(program, h.Dir, "remote", string(public))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		testfile.Write(t, file(name), text)
	}
	write("authorized_keys", line+"\n")
	write("sshd_config", fmt.Sprintf("HostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nPidFile none\nUsePAM no\nPermitRootLogin yes\n"+
		"Subsystem sftp internal-sftp\n", file("host"), file("authorized_keys")))
	port := serveSSH(t, sshd, file("sshd_config"))
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	ssh := func(in string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "ssh", append([]string{"-F", "none", "-p", port, "-i", file("key"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
			"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=" + file("known")}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		return string(out) + errs.String(), err
	}
	at := me.Username + "@127.0.0.1"
	trace := file("ran")
	for name, args := range map[string][]string{
		"as it is meant":  {"-T", at},
		"another command": {"-T", at, "touch", trace},
		"a file transfer": {"-s", at, "sftp"},
		"an agent":        {"-A", "-T", at, "touch " + trace},
	} {
		if out, _ := ssh(opening, args...); !strings.Contains(out, fromBridge) {
			t.Errorf("%s: %s", name, out)
		}
	}
	if out, _ := ssh(opening, "-tt", at, "touch "+trace); !strings.Contains(out, "PTY allocation request failed") {
		t.Errorf("a terminal was given: %s", out)
	}
	for name, args := range map[string][]string{
		"a tunnel back": {"-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1", "-T", at},
		"a tunnel":      {"-W", "127.0.0.1:" + port, at},
	} {
		if out, err := ssh(opening, args...); err == nil || strings.Contains(out, "SSH-2.0") {
			t.Errorf("%s was opened: %s", name, out)
		}
	}
	if _, err := os.Stat(trace); err == nil {
		t.Error("what the other side asked for was run")
	}
	// A negative control: without the forced command the same key is a login.
	write("authorized_keys", string(public))
	if out, err := ssh("", "-T", at, "touch", trace); err != nil {
		t.Fatalf("the plain key does not log in, so nothing was shown above: %v %s", err, out)
	}
	if _, err := os.Stat(trace); err != nil {
		t.Error("the plain key ran nothing, so nothing was shown above")
	}
}

// serveSSH runs sshd until the test ends, and returns its port.
func serveSSH(t *testing.T, sshd, config string) string {
	t.Helper()
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd(8) wants it for its unprivileged part
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), sshd, "-D", "-e", "-f", config, "-o", "ListenAddress=127.0.0.1:"+port)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it ends with the test
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) { // sshd does not tell when it listens
		if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			_ = c.Close()
			return port
		}
		if time.Now().After(deadline) {
			t.Fatal("sshd does not listen")
		}
	}
}
