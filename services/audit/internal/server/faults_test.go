package server_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/mod/sumdb/note"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/rpc"
)

// serve runs a whole audit on a state folder and an address in memory, a new one if it is empty; stop ends it as a process ends.
func serve(t *testing.T, kit *platformtest.Kit, dir, addr string) (bound string, stop func()) {
	t.Helper()
	db, err := store.Open(t.Context(), dir)
	must(t, err)
	l, err := log.Open(t.Context(), log.Config{Store: db, Signer: kit.LogSigner, Keys: func() []note.Verifier { return kit.Trust.Current().LogKeys }})
	must(t, err)
	s, err := server.New(server.Config{Log: l, Store: db, Version: "test", Identity: kit.ID(optionsv1.Role_ROLE_AUDIT, "main")})
	must(t, err)
	must(t, s.RecordStart(t.Context()))
	rpcs := rpc.NewServer(rpc.ServerConfig{Identity: kit.Identity(optionsv1.Role_ROLE_AUDIT, "main"), Logger: platformtest.Logger()})
	s.Register(rpcs)
	var lis net.Listener
	if addr == "" {
		lis, addr = kit.Listen(t)
	} else {
		lis = kit.ListenAgain(addr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- rpcs.Serve(ctx, lis) }()
	return addr, func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		l.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFaultsBetweenProcesses takes audit down, brings it back, hangs it, and puts an old copy of its state in its place,
// under a writer that keeps running.
func TestFaultsBetweenProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kit := platformtest.New(t, platformtest.InMemory())
		dir, old := t.TempDir(), t.TempDir()
		addr, stop := serve(t, kit, dir, "")
		me, audit := kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"), kit.ID(optionsv1.Role_ROLE_AUDIT, "main")
		waiting, err := spool.Open(t.Context(), t.TempDir())
		must(t, err)
		r, err := recorder.Open(t.Context(), kit.Dial(t, me, addr, audit), audit.String(), kit.Trust, recorder.Config{
			Writer: me.String(), Store: waiting, Logger: platformtest.Logger(),
		})
		must(t, err)
		defer func() {
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		record := func() error {
			_, err := r.Record(t.Context(), &auditv1.Record{Kind: auditv1.Kind_KIND_INTENT, RequestId: "r-1"})
			return err
		}
		refused := func(when string) {
			t.Helper()
			began := time.Now()
			if err := record(); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
				t.Errorf("%s: %v", when, err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s: refused after %v", when, took)
			}
		}
		works := func(when string) {
			t.Helper()
			var err error
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
				if err = record(); err == nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Fatalf("%s: %v", when, err)
		}
		works("at the start")
		stop()
		for _, suffix := range []string{"", "-wal"} {
			b, err := os.ReadFile(filepath.Join(dir, store.File+suffix))
			if os.IsNotExist(err) {
				continue
			}
			must(t, err)
			must(t, os.WriteFile(filepath.Join(old, store.File+suffix), b, 0o600))
		}
		refused("audit is down")
		if err := r.Spool(t.Context(), &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: "r-2"}); err != nil {
			t.Errorf("a read while audit is down: %v", err)
		}
		if r.Depth() == 0 || r.Reachable() {
			t.Errorf("depth %d, reachable %v", r.Depth(), r.Reachable())
		}
		_, stop = serve(t, kit, dir, addr)
		works("audit is back")
		if r.Depth() != 0 {
			t.Errorf("%d records are still spooled", r.Depth())
		}
		stop()

		// Something accepts connections there and never says a word.
		mute := kit.ListenAgain(addr)
		go func() {
			for {
				if _, err := mute.Accept(); err != nil {
					return
				}
			}
		}()
		time.Sleep(1500 * time.Millisecond) // time to connect to it
		refused("audit hangs")
		must(t, mute.Close())

		_, stop = serve(t, kit, dir, addr)
		works("audit is back again")
		stop()
		_, stop = serve(t, kit, old, addr)
		time.Sleep(1500 * time.Millisecond) // time to connect to it
		refused("audit runs on an old copy of its state")
		if r.Reachable() {
			t.Error("a log that was put back counts as reachable")
		}
		stop()
		_, stop = serve(t, kit, dir, addr)
		works("the true log is back")
		stop()
	})
}
