package drill

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/procfs"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/trust"
)

// Services of the catalog. Between attacks idle and spare are stopped, and victim runs.
const (
	idle   = "demo-idle"
	victim = "demo-victim"
	spare  = "demo-spare"
)

// clientCount is how many bearer clients there are: every attack gets some of its own.
const clientCount = 250

// world is one installation under attack, with everybody who takes part.
type world struct {
	t    *testing.T
	h    *harness.Host
	weak bool
	// full is a drill in which no attack takes a sample.
	full bool
	// signer is the operator's key; other is a key that nobody trusts.
	signer, other ssh.Signer
	vaultKey      grant.Key
	// clientKey is the key-bound client's: the gateway sees what it signs, and never the key.
	clientKey *ed25519.PrivateKey
	trust     *trust.Folder

	// The gateway's connections, with its real certificate and key, and the operator's.
	gatewayVault, gatewayExecutor, gatewayAudit    *grpc.ClientConn
	operatorVault, operatorExecutor, operatorAudit *grpc.ClientConn
	// Egress' and what stands for other hosts; nil where there is none.
	gatewayEgress, operatorEgress *grpc.ClientConn
	out                           *outside

	nextClient, nextKeyed int
	// keyed are the keys of the key-bound clients that attacks use up.
	keyed    []ed25519.PrivateKey
	weakened map[string]string
	// lost counts calls that did nothing because the log or the vault did not answer in time: the use of a grant is spent by then.
	lost atomic.Int32
	// note is what the running attack measured.
	note string
	// fake is the hostile vault, while it stands in for the real one.
	fake *fakeVault
	// Harvested at the beginning and used when their time is over.
	stale struct {
		at      time.Time
		session *agentSession
		grant   *callv1.SignedGrant
		// page is the grant of a page, where there is egress.
		page *callv1.SignedGrant
	}
}

// newWorld makes an installation and starts it. With egress it has the process that reaches other hosts, which egress configures.
func newWorld(t *testing.T, weak, full bool, egress func(w *world)) *world {
	return newWorldOf(t, "", weak, full, egress)
}

// newWorldOf is newWorld with the programs of a folder; "": those of this commit.
func newWorldOf(t *testing.T, bin string, weak, full bool, egress func(w *world)) *world {
	w := &world{t: t, weak: weak, full: full, weakened: map[string]string{}}
	w.h = harness.New(t, harness.Options{Build: harness.Build{Weak: weak}, Bin: bin, Catalog: catalog, Limits: limits, HoldS: int(holdTime.Seconds()), Egress: egress != nil})
	bound, boundFile := newKey(t)
	parsed, err := ssh.ParseRawPrivateKey(boundFile)
	w.must(err)
	w.clientKey = parsed.(*ed25519.PrivateKey)
	clients := clientsFile(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(bound.PublicKey()))))
	for n := range keyedCount {
		signer, file := newKey(t)
		parsed, err := ssh.ParseRawPrivateKey(file)
		w.must(err)
		w.keyed = append(w.keyed, *parsed.(*ed25519.PrivateKey))
		clients += keyedEntry(n, keyedToken(n), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))))
	}
	clients += fmt.Sprintf("  - {id: %s, token_sha256: %x, channel: \"messaging:drill\", tier_ceiling: READ}\n",
		messenger, sha256.Sum256([]byte(messengerToken)))
	w.h.WriteFile("config/clients.yaml", clients+programEntries(w.h))
	if egress != nil {
		egress(w)
	}
	w.h.StartAll()
	w.trust = w.h.Trust()
	w.signer = w.h.Signer()
	w.other, _ = newKey(t)
	w.vaultKey, err = grant.LoadKey(w.h.Path("keys", "grant.key"))
	w.must(err)

	gateway, operator := w.source(harness.Gateway), w.source("operator")
	w.gatewayVault = w.dial(gateway, harness.Vault, w.h.Identity(harness.Vault))
	w.gatewayExecutor = w.dial(gateway, harness.Executor, w.h.Identity(harness.Executor))
	w.gatewayAudit = w.dial(gateway, harness.Audit, w.h.Identity(harness.Audit))
	w.operatorVault = w.dial(operator, harness.Vault, w.h.Identity(harness.Vault))
	w.operatorExecutor = w.dial(operator, harness.Executor, w.h.Identity(harness.Executor))
	w.operatorAudit = w.dial(operator, harness.Audit, w.h.Identity(harness.Audit))
	if egress != nil {
		w.gatewayEgress = w.dial(gateway, harness.Egress, w.h.Identity(harness.Egress))
		w.operatorEgress = w.dial(operator, harness.Egress, w.h.Identity(harness.Egress))
	}

	w.settle()
	w.stale.session = w.open()
	w.stale.grant = w.approved(w.stale.session, "start_service", idle)
	if w.out != nil {
		w.stale.page = w.fetchGrant(w.stale.session, w.out.at(stalePage))
	}
	w.stale.at = time.Now()
	return w
}

// limits lift the gateway's rates, so that an attack is refused for what it is and not for how often it is tried. Those on
// lists and on connections are an operator's.
const (
	many   = `{per_s: 100000, burst: 100000}`
	limits = `{tools: ` + many + `, reads: ` + many + `, resources: ` + many + `, messages: ` + many +
		`, strangers: ` + many + `, refusal_delay_ms: 1}`
)

func catalog(h *harness.Host) string {
	var b strings.Builder
	b.WriteString("version: 1\ngpus:\n  - {index: 0, name: Simulated 24 GB, memory_mib: 24576, simulated: true}\nservices:\n")
	for i, id := range []string{idle, victim, spare} {
		fmt.Fprintf(&b, `  - id: %s
    name: %s
    driver: process
    argv: [durward-demo, -port, "%d", -touch, %s, -model, "admin_password=%s"]
    writes: [%s]
    port: %d
    health: {path: /health}
    stop_timeout_s: 2
`, id, id, h.Port(i), h.Path("starts-"+id), logged, h.Path("starts-"+id), h.Port(i))
	}
	return b.String()
}

func token(n int) string { return fmt.Sprintf("drill-token-%04d", n) }

// boundToken is the token of the key-bound client, boundClient.
const (
	boundClient = "agent-bound"
	boundToken  = "drill-token-bound"
)

func clientsFile(key string) string {
	var b strings.Builder
	b.WriteString("clients:\n")
	for i := range clientCount {
		digest := sha256.Sum256([]byte(token(i)))
		fmt.Fprintf(&b, "  - {id: agent-%d, token_sha256: %s, channel: api, tier_ceiling: DESTRUCTIVE, limits: {pending: 50}}\n",
			i, hex.EncodeToString(digest[:]))
	}
	digest := sha256.Sum256([]byte(boundToken))
	fmt.Fprintf(&b, "  - {id: %s, token_sha256: %s, key: %s, channel: cli, tier_ceiling: DESTRUCTIVE}\n",
		boundClient, hex.EncodeToString(digest[:]), key)
	return b.String()
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// ctx bounds one call.
func (w *world) ctx(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.t.Context(), limit)
}

// callTime bounds a call that may start a service.
const callTime = 15 * time.Second

// unary makes a call with metadata, within callTime.
func unary[Q, A any](w *world, call func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q, md ...string) (*A, error) {
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	return call(metadata.AppendToOutgoingContext(ctx, md...), request)
}

// until waits until something is so.
func (w *world) until(what string, so func() bool) {
	w.t.Helper()
	harness.Eventually(w.t, what, func() error {
		if !so() {
			return errors.New("not yet")
		}
		return nil
	})
}

// source opens the certificate and key of a process, as they lie in its folder.
func (w *world) source(role string) *identity.Source {
	w.t.Helper()
	s, err := identity.Open(identity.Files{Certificate: w.h.Path("tls", role, "cert.pem"), Key: w.h.Path("tls", role, "key.pem")}, w.trust)
	w.must(err)
	return s
}

func (w *world) dial(as *identity.Source, role string, server identity.ID) *grpc.ClientConn {
	w.t.Helper()
	conn, err := rpc.Dial(rpc.ClientConfig{Identity: as, Address: w.h.Address(role), Server: server, Logger: slog.New(slog.DiscardHandler)})
	w.must(err)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// reconnect waits until a connection is up again after its server was restarted.
func (w *world) reconnect(conn *grpc.ClientConn) {
	w.t.Helper()
	ctx, cancel := w.ctx(harness.Patience)
	defer cancel()
	// One look at the state for both: one that became ready between two would be waited for in vain.
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		conn.ResetConnectBackoff()
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			w.t.Fatal("a process cannot be reached after its restart")
		}
	}
}

// restart ends a process, starts it again with flags, and waits until everybody speaks with it.
func (w *world) restart(role string, flags ...string) {
	w.t.Helper()
	if p := w.h.Process(role); p.Running() {
		p.Kill()
	}
	w.h.SetFlags(role, flags...)
	w.h.StartProcess(role)
	w.awaitAll()
}

func (w *world) awaitAll() {
	w.t.Helper()
	// A connection whose server died learns of it by a call.
	for _, conn := range []*grpc.ClientConn{w.gatewayVault, w.operatorVault, w.gatewayExecutor, w.operatorExecutor, w.gatewayAudit, w.operatorAudit, w.gatewayEgress, w.operatorEgress} {
		if conn != nil {
			w.reconnect(conn)
		}
	}
}

// weaken restarts the processes whose guards differ from those that are wanted.
func (w *world) weaken(wanted map[string]string) {
	w.t.Helper()
	changed := false
	for _, role := range []string{harness.Audit, harness.Vault, harness.Executor, harness.Egress, harness.Gateway} {
		if w.weakened[role] == wanted[role] {
			continue
		}
		if w.fake != nil && role == harness.Vault {
			continue // the real one is not running
		}
		w.weakened[role] = wanted[role]
		w.restart(role, w.guards(role)...)
		changed = true
	}
	if changed {
		w.settle()
	}
}

// guards are the flags with which a process lacks the guards that it should lack now.
func (w *world) guards(role string) []string {
	if w.weakened[role] == "" {
		return nil
	}
	return []string{"-weaken", w.weakened[role]}
}

// settle waits until the whole chain works: a human's own command is carried out.
func (w *world) settle() {
	w.t.Helper()
	harness.Eventually(w.t, "a human's own command is carried out", func() error {
		if err := w.command("stop_service", victim); err != nil {
			return err
		}
		return w.command("start_service", victim)
	})
}

// size is how often an attack repeats what it does: all, or in a drill that is not full, a sample.
func (w *world) size(all, sample int) int {
	if w.full {
		return all
	}
	return sample
}

// tries is size for a loop that a control leaves with its first effect: it has all of them, since a sample may miss the guard that it
// lacks.
func (w *world) tries(all, sample int) int {
	if w.weak {
		return all
	}
	return w.size(all, sample)
}

// mark is the state before an attack.
type mark struct {
	starts  int
	victims []int
	lost    int32
}

// arrange stops what should be stopped, starts what should run, and remembers.
func (w *world) arrange() mark {
	w.t.Helper()
	w.kill(idle)
	w.kill(spare)
	if len(w.pids(victim)) == 0 {
		harness.Eventually(w.t, "the victim runs", func() error { return w.command("start_service", victim) })
	}
	return mark{starts: w.starts(), victims: w.pids(victim), lost: w.lost.Load()}
}

// used are the effects since the mark of what may be used scopeUses times. Where fewer are seen that were not lost, more prove nothing.
func (w *world) used(m mark) int {
	w.t.Helper()
	n := w.effects(m)
	w.usedUp(n, m.lost)
	return n
}

func (w *world) usedUp(effects int, lostBefore int32) {
	w.t.Helper()
	if lost := int(w.lost.Load() - lostBefore); effects+lost < scopeUses {
		w.t.Fatalf("of %d uses %d had an effect and %d were lost, so that more prove nothing", scopeUses, effects, lost)
	}
}

// effects counts starts since the mark, and services that ran then and have ended.
func (w *world) effects(m mark) int {
	w.t.Helper()
	n := w.starts() - m.starts
	now := w.pids(victim)
	for _, pid := range m.victims {
		if !slices.Contains(now, pid) {
			n++
		}
	}
	return n
}

// caught reports whether a control has shown enough.
func (w *world) caught(effects int) bool { return w.weak && effects > 0 }

// starts counts the marks that all services left, each as its program began.
func (w *world) starts() int {
	w.t.Helper()
	return w.startsOf(idle) + w.startsOf(victim) + w.startsOf(spare)
}

func (w *world) startsOf(service string) int {
	w.t.Helper()
	return strings.Count(w.startsFile(service), "\n")
}

// startsFile has a line for each start of a service, which its program wrote.
func (w *world) startsFile(service string) string {
	w.t.Helper()
	b, err := os.ReadFile(w.h.Path("starts-" + service))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Error(err)
	}
	return string(b)
}

// pids returns the running programs of a service.
func (w *world) pids(service string) []int {
	w.t.Helper()
	var out []int
	for _, pid := range w.h.ServicePIDs() {
		line, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
		if err == nil && strings.Contains(string(line), w.h.Path("starts-"+service)+"\x00") {
			out = append(out, pid)
		}
	}
	return out
}

// kill ends a service behind everybody's back, and waits until its port is free and the executor, where it is its parent, knows.
func (w *world) kill(service string) {
	w.t.Helper()
	killed := w.pids(service)
	for _, pid := range killed {
		_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
	}
	harness.Eventually(w.t, service+" is gone", func() error {
		if n := len(w.pids(service)); n > 0 {
			return fmt.Errorf("%d of it run", n)
		}
		for _, pid := range killed {
			if w.unnoticed(pid) {
				return fmt.Errorf("the executor has not noticed the end of %d", pid)
			}
		}
		return nil
	})
}

// unnoticed reports whether a process has ended, and the executor, its parent, has not asked how.
func (w *world) unnoticed(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	stat := procfs.Stat(raw)
	return err == nil && len(stat) > 1 && stat[0] == "Z" && stat[1] == strconv.Itoa(w.h.Process(harness.Executor).PID())
}

// query reads one number out of a process's store. The log's newest records get into their tables a moment after they were written.
func (w *world) query(role, statement string, args ...any) int {
	w.t.Helper()
	if role == harness.Audit {
		harness.Eventually(w.t, "the log's records are in their tables", func() error {
			if n := w.number(role, `SELECT count(*) FROM tail`); n > 0 {
				return fmt.Errorf("%d commits are not", n)
			}
			return nil
		})
	}
	return w.number(role, statement, args...)
}

func (w *world) number(role, statement string, args ...any) int {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+w.h.Path("state", role, role+".db")+"?mode=ro&_pragma=busy_timeout(5000)")
	w.must(err)
	defer db.Close()
	var n int
	w.must(db.QueryRowContext(w.t.Context(), statement, args...).Scan(&n))
	return n
}
