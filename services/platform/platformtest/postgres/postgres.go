// Package postgres runs Debian's PostgreSQL for tests, as a user who is not root, with TLS. It is for tests alone, and dials
// nothing: what it asks the server, psql asks.
package postgres

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Password is each role's.
const Password = "a-password-of-tests"

// Databases are the databases of a Server, each with a role of its name.
var Databases = []string{"durward_audit", "durward_vault"}

// hba is who may connect to which database.
const hba = "local all postgres trust\nlocal all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\n"

// Server is a running server with the databases.
type Server struct {
	// Dir holds everything of it; its socket too.
	Dir string
	// Port is its port on 127.0.0.1, and in the name of its socket.
	Port int
	// CA and PasswordFile are what a client needs. The certificate is for localhost.
	CA, PasswordFile string

	bin        string
	uid, gid   uint32
	postmaster *exec.Cmd
}

// Start starts one, which ends with the test. settings are lines of postgresql.conf. Where no PostgreSQL is installed the test
// fails: scripts/install-real.sh installs it.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(bins) == 0 {
		t.Fatal("PostgreSQL is not installed: run scripts/install-real.sh")
	}
	slices.Sort(bins)
	// Not t.TempDir, which another user cannot enter. The socket's path must be short.
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Dir: dir, Port: port(t), CA: filepath.Join(dir, "ca.pem"), PasswordFile: filepath.Join(dir, "password"), bin: bins[len(bins)-1],
		uid: uint32(os.Getuid()), gid: uint32(os.Getgid())}
	if s.uid == 0 {
		owner, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, err1 := strconv.ParseUint(owner.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(owner.Gid, 10, 32)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		s.uid, s.gid = uint32(uid), uint32(gid)
	}
	t.Cleanup(func() {
		s.Kill(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.write(t, "password", Password+"\n", 0o600)
	if err := os.Chown(s.PasswordFile, os.Getuid(), os.Getgid()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, int(s.uid), int(s.gid)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the password is in a file of its own
		t.Fatal(err)
	}
	s.must(t, "initdb", "--no-sync", "--auth=trust", "--username=postgres", "--pgdata="+s.data())
	s.certify(t)
	s.write(t, "data/pg_hba.conf", hba, 0o600)
	conf := append([]string{
		"listen_addresses = '127.0.0.1'", fmt.Sprintf("port = %d", s.Port), "unix_socket_directories = '" + dir + "'", "ssl = on",
		"password_encryption = 'scram-sha-256'", "shared_buffers = 32MB", "restart_after_crash = on",
	}, settings...)
	s.write(t, "data/postgresql.conf", strings.Join(conf, "\n")+"\n", 0o600)
	s.Run(t)
	for _, name := range Databases {
		s.SQL(t, "postgres", "CREATE ROLE "+name+" LOGIN PASSWORD '"+Password+"'")
		s.SQL(t, "postgres", "CREATE DATABASE "+name+" OWNER "+name)
	}
	return s
}

// Standby starts a second server that follows this one, and has this one acknowledge nothing that the other has not on its disk. The
// other has the same certificate and roles, and writes once it is promoted.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	other := *s
	other.Dir, other.Port, other.postmaster = dir, port(t), nil
	t.Cleanup(func() {
		other.Kill(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, int(s.uid), int(s.gid)); err != nil {
		t.Fatal(err)
	}
	s.write(t, "data/pg_hba.conf", "local replication postgres trust\n"+hba, 0o600)
	s.SQL(t, "postgres", "SELECT pg_reload_conf()")
	s.must(t, "pg_basebackup", "--host="+s.Dir, "--port="+strconv.Itoa(s.Port), "--username=postgres", "--pgdata="+other.data(), "--checkpoint=fast", "--no-sync")
	conf, err := os.ReadFile(filepath.Join(other.data(), "postgresql.conf"))
	if err != nil {
		t.Fatal(err)
	}
	// Of two lines for one setting the last counts.
	other.write(t, "data/postgresql.conf", string(conf)+fmt.Sprintf("port = %d\nunix_socket_directories = '%s'\nprimary_conninfo = 'host=%s port=%d user=postgres application_name=standby'\n",
		other.Port, dir, s.Dir, s.Port), 0o600)
	other.write(t, "data/standby.signal", "", 0o600)
	other.Run(t)
	s.SQL(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
	s.SQL(t, "postgres", "SELECT pg_reload_conf()")
	for began := time.Now(); s.SQL(t, "postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != "1"; time.Sleep(20 * time.Millisecond) { // psql is the only one to ask
		if time.Since(began) > time.Minute {
			t.Fatal("the standby does not follow")
		}
	}
	return &other
}

// Promote has a standby write, and returns when it does.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	if done := s.SQL(t, "postgres", "SELECT pg_promote(true, 60)"); done != "t" {
		t.Fatalf("pg_promote: %s", done)
	}
}

func port(t testing.TB) int {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().(*net.TCPAddr).Port
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// Socket is where it listens, as audit.yaml names it.
func (s *Server) Socket() string {
	return fmt.Sprintf("unix:%s/.s.PGSQL.%d,user=%d", s.Dir, s.Port, s.uid)
}

// Address is its TCP address, as audit.yaml names it.
func (s *Server) Address() string { return fmt.Sprintf("%q", fmt.Sprintf("localhost:%d", s.Port)) }

func (s *Server) write(t testing.TB, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(s.Dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil { // #nosec G703 -- in the server's own folder
		t.Fatal(err)
	}
	if err := os.Chown(path, int(s.uid), int(s.gid)); err != nil {
		t.Fatal(err)
	}
}

// certify makes an authority's certificate, which is the server's too.
func (s *Server) certify(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	s.write(t, "data/server.crt", certificate, 0o600)
	s.write(t, "data/server.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})), 0o600)
	s.write(t, "ca.pem", certificate, 0o644)
}

func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, program), args...) //nolint:gosec // programs of PostgreSQL's own
	cmd.Dir = s.Dir
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.uid, Gid: s.gid}}
	}
	return cmd
}

func (s *Server) must(t testing.TB, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := s.command(ctx, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// Run starts the server, after Kill too, and returns when it answers.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	// It is this process's child, so that it is no zombie when it is killed: the next one would take it for one that runs.
	s.postmaster = s.command(context.Background(), "postgres", "-D", s.data())
	s.postmaster.Stdout, s.postmaster.Stderr = log, log
	if err := s.postmaster.Start(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // pg_isready is the only one to ask
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		out, err := s.command(ctx, "pg_isready", "--host="+s.Dir, "--port="+strconv.Itoa(s.Port)).CombinedOutput()
		cancel()
		if err == nil {
			return
		}
		if time.Since(began) > time.Minute {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("PostgreSQL does not start: %s\n%s", out, text)
		}
	}
}

// Hang stops the server and all of its processes where they are, until resume: connections stay open and nobody answers.
func (s *Server) Hang(t testing.TB) (resume func()) {
	t.Helper()
	pids := append([]string{strconv.Itoa(s.postmaster.Process.Pid)}, s.children(t)...)
	send := func(signal syscall.Signal) {
		for _, pid := range pids {
			if n, err := strconv.Atoi(pid); err == nil && n > 1 {
				_ = syscall.Kill(n, signal) // it may have ended
			}
		}
	}
	send(syscall.SIGSTOP)
	return func() { send(syscall.SIGCONT) }
}

// children are the ids of the processes that the server started.
func (s *Server) children(t testing.TB) []string {
	t.Helper()
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.postmaster.Process.Pid))
	if err != nil {
		t.Error(err)
	}
	return strings.Fields(string(list))
}

// Detach has a standby follow no more, while its server acknowledges without it: what comes from here on it does not have.
func (s *Server) Detach(t testing.TB, standby *Server) {
	t.Helper()
	s.SQL(t, "postgres", "ALTER SYSTEM RESET synchronous_standby_names")
	s.SQL(t, "postgres", "SELECT pg_reload_conf()")
	standby.SQL(t, "postgres", "ALTER SYSTEM SET primary_conninfo = ''")
	standby.SQL(t, "postgres", "SELECT pg_reload_conf()")
	for began := time.Now(); s.SQL(t, "postgres", "SELECT count(*) FROM pg_stat_replication") != "0"; time.Sleep(20 * time.Millisecond) { // psql is the only one to ask
		if time.Since(began) > time.Minute {
			t.Fatal("the standby follows still")
		}
	}
}

// Running reports whether the server is there: on a full disk it may have ended by itself.
func (s *Server) Running() bool {
	return s.postmaster != nil && alive(strconv.Itoa(s.postmaster.Process.Pid))
}

// Kill ends the server and all of its processes with SIGKILL, as a power cut would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.postmaster == nil {
		return // it never ran
	}
	children := s.children(t)       // before they lose their parent
	_ = s.postmaster.Process.Kill() // it may have ended
	for _, pid := range children {
		if n, err := strconv.Atoi(pid); err == nil && n > 1 {
			_ = syscall.Kill(n, syscall.SIGKILL) // it may have ended
		}
	}
	_ = s.postmaster.Wait() // it was killed
	s.postmaster = nil
	for _, pid := range children {
		for began := time.Now(); alive(pid); time.Sleep(5 * time.Millisecond) { // it is not this process's child
			if time.Since(began) > time.Minute {
				t.Fatalf("process %s outlives a SIGKILL", pid)
			}
		}
	}
}

// alive reports whether a process has memory: one that ended and whose parent has not asked has none.
func alive(pid string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err == nil && !strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " Z")
}

// SQL runs one statement as the server's own user, and returns what psql prints, without decoration.
func (s *Server) SQL(t testing.TB, database, statement string) string {
	t.Helper()
	return strings.TrimSpace(s.must(t, "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1",
		"--host="+s.Dir, "--port="+strconv.Itoa(s.Port), "--username=postgres", "--dbname="+database, "--command="+statement))
}
