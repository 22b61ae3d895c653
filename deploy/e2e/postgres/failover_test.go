//go:build real

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/ledger"
	server "durward.internal/services/platform/platformtest/postgres"
)

// follows is how long a writer may take until its records are acknowledged again. A process that is stopped is noticed after one
// call of 2 s, and loses its lead after 3 s; the rest is for a busy machine.
const follows = 10 * time.Second

// refused is how long a change may wait for a refusal where nothing can be recorded.
const refused = 2 * time.Second

// enough is how many records are acknowledged before the next fault.
const enough = 15

// after waits until enough records of a writer are acknowledged after that time.
func after(t *testing.T, w *ledger.Writer, what string, began time.Time) {
	t.Helper()
	var first time.Time
	harness.Eventually(t, w.Name+"'s records are acknowledged after "+what, func() error {
		var n int
		if n, first = w.Acknowledged(began); n < enough {
			return fmt.Errorf("%d so far", n)
		}
		return nil
	})
	waited := first.Sub(began)
	if waited > follows {
		t.Errorf("after %s %s waited %v", what, w.Name, waited)
	}
	t.Logf("%s: %s goes on after %v", what, w.Name, waited.Round(time.Millisecond))
}

// rig is two audits on one database, and writers to both.
type rig struct {
	t   *testing.T
	h   *harness.Host
	log *ledger.Ledger
	// stop ends the writers.
	stop func()
}

// start starts the audits, with the addresses of the database's servers and what clients of it need, and writers that never stop.
func start(t *testing.T, passwordFile, ca string, addresses ...string) *rig {
	t.Helper()
	return startWith(t, harness.Options{}, passwordFile, ca, addresses...)
}

// startWith starts programs of another build.
func startWith(t *testing.T, opts harness.Options, passwordFile, ca string, addresses ...string) *rig {
	t.Helper()
	r := &rig{t: t, h: harness.New(t, opts)}
	settings := r.h.ReadFile("config/audit.yaml") + fmt.Sprintf("\ndatabase:\n  engine: postgres\n  addresses: [%s]\n  name: durward_audit\n  user: durward_audit\n  password_file: %s\n  ca: %s\n",
		strings.Join(addresses, ", "), passwordFile, ca)
	r.h.WriteFile("config/audit.yaml", settings)
	second := strings.NewReplacer(r.h.Address(harness.Audit), r.h.Address(harness.Standby), r.h.HealthAddress(harness.Audit), r.h.HealthAddress(harness.Standby),
		"state/audit", "state/standby").Replace(settings)
	r.h.WriteFile("config/standby.yaml", second)
	r.h.StartProcess(harness.Audit)
	r.h.StartProcess(harness.Standby)
	r.log = ledger.New(t, r.h)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, role := range []string{harness.Executor, harness.Vault} {
		w := r.log.Add(role, harness.Audit, harness.Standby)
		running.Go(func() { w.Run(ctx, 0) })
	}
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(r.stop)
	r.after("the start", time.Now())
	return r
}

// after waits until every writer goes on.
func (r *rig) after(what string, began time.Time) {
	r.t.Helper()
	for _, w := range r.log.Writers {
		after(r.t, w, what, began)
	}
}

// refuses looks whether each writer is refused in time.
func (r *rig) refuses(what string) {
	r.t.Helper()
	for _, w := range r.log.Writers {
		began := time.Now()
		err := w.Append(r.t.Context())
		if took := time.Since(began); err == nil || took > refused {
			r.t.Errorf("%s: a record of %s gets %v after %v", what, w.Name, err, took)
		}
	}
}

// told waits until durward status says so.
func told(t *testing.T, h *harness.Host, words string) {
	t.Helper()
	harness.Eventually(t, "durward status says "+words, func() error {
		if out := h.Run("", "status"); !strings.Contains(out.Stdout, words) {
			return errors.New(out.Stdout)
		}
		return nil
	})
}

// TestFailover: under writers that never stop, the audit that leads is killed, then the next one is stopped past its lock and
// goes on, then PostgreSQL itself hangs, and is killed. No record that was acknowledged is lost or doubled, and no index is used twice.
func TestFailover(t *testing.T) {
	pg := server.Start(t)
	r := start(t, pg.PasswordFile, pg.CA, pg.Address())

	began := time.Now()
	r.h.Process(harness.Audit).Kill()
	r.after("kill -9 of the audit that leads", began)
	r.h.StartProcess(harness.Audit)

	leader := r.h.Process(harness.Standby)
	began = time.Now()
	leader.Hang()
	r.after("SIGSTOP of the audit that leads", began)
	began = time.Now()
	leader.Continue()
	harness.Eventually(t, "the audit that was stopped stands by", func() error {
		if log := leader.Log(); !strings.Contains(log, "stands by") {
			return errors.New(log)
		}
		return nil
	})
	r.after("it goes on", began)

	resume := pg.Hang(t)
	r.refuses("while PostgreSQL hangs")
	began = time.Now()
	resume()
	r.after("SIGSTOP of PostgreSQL", began)

	pg.Kill(t)
	told(t, r.h, "the log's database cannot be reached")
	began = time.Now()
	pg.Run(t)
	r.after("kill -9 of PostgreSQL", began)
	r.verify()
}

// TestServerFailover: the PostgreSQL server that the audits write to is killed, and its synchronous standby promoted. What was
// acknowledged is there, once, at its index, and the audits go on with the other server.
func TestServerFailover(t *testing.T) {
	primary := server.Start(t)
	standby := primary.Standby(t)
	r := start(t, primary.PasswordFile, primary.CA, primary.Address(), standby.Address())
	began := time.Now()
	primary.Kill(t)
	r.refuses("while no server writes")
	standby.Promote(t)
	r.after("kill -9 of the primary, and the promotion of its standby", began)
	r.verify()
}

// TestNetworkCut: nothing comes through between the audits and PostgreSQL, and no connection ends. Changes are refused in time, and once
// the network is back no record is lost or doubled.
func TestNetworkCut(t *testing.T) {
	pg := server.Start(t)
	wire := newWire(t, fmt.Sprintf("127.0.0.1:%d", pg.Port))
	r := start(t, pg.PasswordFile, pg.CA, fmt.Sprintf("\"localhost:%d\"", wire.port))
	for range 2 {
		wire.cut(true)
		r.refuses("without a network")
		began := time.Now()
		wire.cut(false)
		r.after("a network cut", began)
	}
	r.verify()
}

// wire forwards connections to a server, and nothing while it is cut.
type wire struct {
	port int

	mu    sync.Mutex
	whole chan struct{} // closed while it is not cut
}

func newWire(t *testing.T, server string) *wire {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{port: lis.Addr().(*net.TCPAddr).Port, whole: make(chan struct{})}
	close(w.whole)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = lis.Close() // nobody listens any more
	})
	go func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", server)
			if err != nil {
				_ = in.Close() // the server is away
				continue
			}
			go w.forward(ctx, in, out)
			go w.forward(ctx, out, in)
		}
	}()
	return w
}

// cut cuts the wire, or mends it.
func (w *wire) cut(off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if off {
		w.whole = make(chan struct{})
	} else {
		close(w.whole)
	}
}

func (w *wire) forward(ctx context.Context, from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		whole := w.whole
		w.mu.Unlock()
		select {
		case <-whole:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			_, _ = from.Close(), to.Close() // one of them has ended
			return
		}
	}
}

// verify fails for what is wrong of the log.
func (r *rig) verify() {
	t := r.t
	t.Helper()
	for _, wrong := range r.wrong() {
		t.Error(wrong)
	}
	for _, w := range r.log.Writers {
		if n := len(w.Times()); n < 2*enough {
			t.Errorf("%s had %d records acknowledged: the test shows little", w.Name, n)
		}
	}
}

// wrong ends the writers, reads the whole log from each audit, proves it, and holds against it what the writers were told.
func (r *rig) wrong() (list []string) {
	t := r.t
	t.Helper()
	r.stop()
	r.log.Deliver()
	r.log.Close()
	if said := r.log.Untrue(); said != "" {
		list = append(list, "a writer found the log untrue:\n"+said)
	}
	for _, role := range []string{harness.Audit, harness.Standby} {
		var log *ledger.Log
		harness.Eventually(t, role+"'s log can be read", func() (err error) { // by one whose connections ended with the server, too
			if log, err = r.log.Read(role); err != nil && status.Code(err) != codes.Unavailable {
				t.Fatalf("%s: %v", role, err)
			}
			return err
		})
		for _, wrong := range r.log.Check(log, time.Time{}) {
			list = append(list, role+": "+wrong)
		}
		t.Logf("%s: %d entries verify", role, log.Size)
	}
	return list
}
