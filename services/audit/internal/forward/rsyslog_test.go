//go:build real

package forward

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/platformtest/syslogtest"
)

// rsyslog is Debian's, with a configuration of this test's: it writes what it reads at once.
type rsyslog struct {
	t       *testing.T
	dir, at string
	roots   *x509.CertPool
	cmd     *exec.Cmd
}

func newRsyslog(t *testing.T) *rsyslog {
	t.Helper()
	r := &rsyslog{t: t, dir: t.TempDir(), roots: x509.NewCertPool()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rsyslog"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	r.roots.AddCert(cert)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(r.dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(filepath.Join(r.dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r.at = lis.Addr().String()
	must(t, lis.Close())
	_, port, _ := net.SplitHostPort(r.at)
	must(t, os.WriteFile(filepath.Join(r.dir, "rsyslog.conf"), []byte(fmt.Sprintf(`global(workDirectory="%[1]s" defaultNetstreamDriver="ossl" defaultNetstreamDriverCAFile="%[1]s/cert.pem" defaultNetstreamDriverCertFile="%[1]s/cert.pem" defaultNetstreamDriverKeyFile="%[1]s/key.pem" parser.escapeControlCharactersOnReceive="off")
module(load="imtcp" streamDriver.name="ossl" streamDriver.mode="1" streamDriver.authMode="anon")
template(name="raw" type="string" string="%%rawmsg%%\n")
ruleset(name="keep" queue.type="Direct"){ action(type="omfile" file="%[1]s/out.log" template="raw") }
input(type="imtcp" port="%[2]s" address="127.0.0.1" ruleset="keep")
`, r.dir, port)), 0o600))
	r.start()
	t.Cleanup(r.kill)
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rsyslog) start() {
	r.t.Helper()
	if err := os.Remove(filepath.Join(r.dir, "pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	path, err := exec.LookPath("rsyslogd")
	if err != nil {
		path = "/usr/sbin/rsyslogd"
	}
	r.cmd = exec.CommandContext(context.WithoutCancel(r.t.Context()), path, "-n", "-f", filepath.Join(r.dir, "rsyslog.conf"), "-i", filepath.Join(r.dir, "pid"))
	out, err := os.OpenFile(filepath.Join(r.dir, "stderr"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(r.t, err)
	defer out.Close()
	r.cmd.Stderr = out
	must(r.t, r.cmd.Start())
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := net.Dial("tcp", r.at)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			b, _ := os.ReadFile(filepath.Join(r.dir, "stderr"))
			r.t.Fatalf("rsyslog does not listen: %v\n%s", err, b)
		}
		time.Sleep(20 * time.Millisecond) // another program tells nobody that it listens
	}
}

func (r *rsyslog) kill() {
	if r.cmd != nil {
		must(r.t, r.cmd.Process.Kill())
		_ = r.cmd.Wait() // it says that it was killed
		r.cmd = nil
	}
}

func (r *rsyslog) lines() []string {
	b, err := os.ReadFile(filepath.Join(r.dir, "out.log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must(r.t, err)
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// TestRsyslogLosesNothing: Debian's rsyslog is killed while it reads, again and again, and started again: in its file is every record, in order.
func TestRsyslogLosesNothing(t *testing.T) {
	r := newRsyslog(t)
	a, dir, want := &audit{}, t.TempDir(), 0
	to := NewSyslog(SyslogConfig{
		Dial: (&net.Dialer{}).DialContext, Address: r.at, TLS: always(&tls.Config{RootCAs: r.roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}),
		Origin: origin, Host: "host.example", MaxMessage: LeastMessage,
	})
	interrupted := 0
	for round := range 10 {
		a.grow(2000, 0)
		want += 2000
		f := forwarder(t, a, dir, to)
		go func(cmd *exec.Cmd) {
			time.Sleep(time.Duration(round) * 7 * time.Millisecond) // into the midst of it, at another place each time
			_ = cmd.Process.Kill()
		}(r.cmd)
		for more := true; more; {
			var err error
			if more, err = f.Step(t.Context()); err != nil {
				interrupted++
				r.kill()
				r.start()
				more = true
			}
		}
		r.kill()
		r.start()
	}
	var got []uint64
	broken := 0
	for _, line := range r.lines() {
		m, err := syslogtest.Parse(line)
		if err != nil {
			broken++ // what was cut off as it was written
			continue
		}
		i, err := strconv.ParseUint(m.Parameters["index"], 10, 64)
		must(t, err)
		got = append(got, i)
	}
	doubled := inOrder(t, got, want)
	t.Logf("%d records, interrupted %d times, %d came twice, %d lines are broken", want, interrupted, doubled, broken)
	if interrupted == 0 || broken > interrupted {
		t.Errorf("interrupted %d times, %d lines are broken", interrupted, broken)
	}
}

// TestRsyslogTakesHostileText: one line for each record, whatever it says. Messages longer than rsyslog takes forge: their rest is read as a
// message.
func TestRsyslogTakesHostileText(t *testing.T) {
	var records []*auditv1.ForwardedRecord
	for i, text := range hostile {
		records = append(records, &auditv1.ForwardedRecord{Index: uint64(i), Writer: text, LeafHash: leaf(i, 0), Record: &auditv1.Record{
			Kind: auditv1.Kind_KIND_DENIED, Time: timestamppb.Now(), Tool: text, Body: &auditv1.Body{Summary: text, Arguments: text, Principal: text},
		}})
	}
	for _, most := range []int{LeastMessage, 9000} {
		r := newRsyslog(t)
		to := NewSyslog(SyslogConfig{
			Dial: (&net.Dialer{}).DialContext, Address: r.at, TLS: always(&tls.Config{RootCAs: r.roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}),
			Origin: origin, Host: "host.example", MaxMessage: most,
		})
		must(t, to.Send(t.Context(), records))
		lines := r.lines()
		if (len(lines) == len(records)) != (most == LeastMessage) {
			t.Errorf("%d lines of %d records, with at most %d bytes", len(lines), len(records), most)
		}
		for i, line := range lines {
			if m, err := syslogtest.Parse(line); most == LeastMessage && (err != nil || m.Parameters["index"] != strconv.Itoa(i)) {
				t.Errorf("record %d: %v: %.300q", i, err, line)
			}
		}
	}
}
