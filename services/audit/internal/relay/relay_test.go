package relay_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/cosigned"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/relay"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/audit/internal/witness"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/trust"
)

// world is a log, witnesses of it and a relay between them, each as it is in its process, over real connections.
type world struct {
	t         *testing.T
	kit       *platformtest.Kit
	dir       string
	witnesses []*testWitness
	said      bytes.Buffer
	saying    sync.Mutex
}

type testWitness struct {
	signer  *logproof.Cosigner
	key     ed25519.PrivateKey
	handler http.Handler
	server  *httptest.Server
	// answer takes the place of the witness's own; nil: its own.
	answer func(http.ResponseWriter, *http.Request)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T, witnesses, quorum int, required string) *world {
	t.Helper()
	w := &world{t: t, kit: platformtest.New(t), dir: t.TempDir()}
	w.kit.Deadline = time.Minute
	doc := fmt.Sprintf("quorum: %d\nrequired_within: %q\nwitnesses:\n", quorum, required)
	for i := range witnesses {
		_, key, err := ed25519.GenerateKey(nil)
		must(t, err)
		one := &testWitness{key: key}
		one.signer, err = logproof.NewCosigner(fmt.Sprintf("witness.example/%d", i), key, time.Now)
		must(t, err)
		made, err := witness.New(witness.Config{Signer: one.signer, Logs: w.keys(), Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		one.handler = made.Handler()
		one.server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
			if one.answer != nil {
				one.answer(out, in)
				return
			}
			one.handler.ServeHTTP(out, in)
		}))
		t.Cleanup(one.server.Close)
		w.witnesses = append(w.witnesses, one)
		doc += "  - " + one.signer.String() + "\n"
	}
	if witnesses > 0 {
		w.kit.WriteTrust(trust.FileWitnesses, []byte(doc))
		must(t, w.kit.Trust.Reload())
	}
	return w
}

func (w *world) keys() []note.Verifier { return w.kit.Trust.Current().LogKeys }

// Write takes what the relay logs.
func (w *world) Write(b []byte) (int, error) {
	w.saying.Lock()
	defer w.saying.Unlock()
	return w.said.Write(b)
}

func (w *world) logged() string {
	w.saying.Lock()
	defer w.saying.Unlock()
	return w.said.String()
}

// audit is a running audit process.
type audit struct {
	log      *log.Log
	cosigned *cosigned.Keeper
	addr     string
	close    func()
}

// audit starts audit on a state folder.
func (w *world) audit(dir string) *audit {
	w.t.Helper()
	ctx := w.t.Context()
	db, err := store.Open(ctx, dir)
	must(w.t, err)
	history, err := log.Open(ctx, log.Config{Store: db, Signer: w.kit.LogSigner, Keys: w.keys})
	must(w.t, err)
	kept, err := cosigned.Open(ctx, cosigned.Config{
		Log: history, Dir: dir, Keys: w.keys, Witnesses: func() logproof.Witnesses { return w.kit.Trust.Current().Witnesses },
	})
	must(w.t, err)
	services, err := server.New(server.Config{Log: history, Store: db, Version: "test", Identity: w.kit.ID(optionsv1.Role_ROLE_AUDIT, "main"), Cosigned: kept})
	must(w.t, err)
	a := &audit{log: history, cosigned: kept, addr: w.kit.Serve(w.t, optionsv1.Role_ROLE_AUDIT, "main", services.Register)}
	var once sync.Once
	a.close = func() { once.Do(func() { history.Close(); must(w.t, db.Close()) }) }
	w.t.Cleanup(a.close)
	return a
}

// write adds records of an executor.
func (w *world) write(a *audit, n int, said string) {
	w.t.Helper()
	writer := w.kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local").String()
	head, err := a.log.Head(w.t.Context(), writer, 0)
	must(w.t, err)
	var records []*auditv1.Record
	for i := range n {
		records = append(records, &auditv1.Record{
			Sequence: head.GetLastSequence() + uint64(i) + 1, Kind: auditv1.Kind_KIND_OUTCOME, Time: timestamppb.Now(), Body: &auditv1.Body{Summary: said},
		})
	}
	_, err = a.log.Append(w.t.Context(), writer, records, 0)
	must(w.t, err)
}

func (w *world) dial(a *audit, role optionsv1.Role, instance string) *grpc.ClientConn {
	w.t.Helper()
	return w.kit.Dial(w.t, w.kit.ID(role, instance), a.addr, w.kit.ID(optionsv1.Role_ROLE_AUDIT, "main"))
}

// relay returns a relay that dials the witnesses and nobody else, and what it dials with.
func (w *world) relay(a *audit) *relay.Relay {
	w.t.Helper()
	cfg := dialer.Config{Ports: []uint16{}, Allow: destination.Only()}
	var urls []string
	var only []destination.Destination
	for _, one := range w.witnesses {
		_, to, err := destination.ParseURL(one.server.URL)
		must(w.t, err)
		urls, only = append(urls, one.server.URL), append(only, to)
		cfg.Local = append(cfg.Local, netip.MustParseAddrPort(to.String()))
	}
	cfg.Allow = destination.Only(only...)
	d, err := dialer.New(cfg)
	must(w.t, err)
	return relay.New(relay.Config{
		Audit: auditv1.NewWitnessServiceClient(w.dial(a, optionsv1.Role_ROLE_RELAY, "main")), URLs: urls, Do: d, Interval: time.Hour,
		Witnesses: func() logproof.Witnesses { return w.kit.Trust.Current().Witnesses },
		Logger:    slog.New(slog.NewTextHandler(w, nil)),
	})
}

// verifier is somebody who believes a log only as far as it is proved: a sink's recorder has a Keeper, and so have an operator's
// programs.
func (w *world) verifier(memory logproof.CheckpointStore, asked func() logproof.Witnesses) *logproof.Keeper {
	w.t.Helper()
	k, err := logproof.NewKeeper(w.t.Context(), logproof.KeeperConfig{Origin: w.kit.LogSigner.Name(), Keys: w.keys, Store: memory, Witnesses: asked})
	must(w.t, err)
	return k
}

func (w *world) trusted() logproof.Witnesses { return w.kit.Trust.Current().Witnesses }

// look asks audit as a sink does.
func (w *world) look(a *audit, k *logproof.Keeper) error {
	w.t.Helper()
	answer, err := auditv1.NewLogServiceClient(w.dial(a, optionsv1.Role_ROLE_EXECUTOR, "local")).GetHead(w.t.Context(), &auditv1.GetHeadRequest{KnownSize: k.Held().Size})
	must(w.t, err)
	return k.AcceptAnswer(w.t.Context(), answer, time.Now())
}

// memory keeps a checkpoint, and nothing of witnesses'.
type memory struct{ kept []byte }

func (m *memory) LoadCheckpoint(_ context.Context, which logproof.Kept) ([]byte, error) {
	if which == logproof.KeptWitnessed {
		return nil, nil
	}
	return m.kept, nil
}

func (m *memory) SaveCheckpoint(_ context.Context, which logproof.Kept, b []byte) error {
	if which == logproof.KeptSeen {
		m.kept = b
	}
	return nil
}

// TestRound: what witnesses cosigned comes to whoever asks audit, over the restart of audit and of the relay.
func TestRound(t *testing.T) {
	w := newWorld(t, 3, 2, "")
	a := w.audit(w.dir)
	w.write(a, 5, "true")
	r := w.relay(a)
	fresh := w.verifier(nil, w.trusted)
	must(t, w.look(a, fresh))
	if got, err := fresh.Witnessed(time.Now()); !got.IsZero() || err != nil {
		t.Errorf("before the first round: %v, %v", got.By, err)
	}
	if silent := a.cosigned.Silent(time.Now().Add(time.Hour)); silent < time.Hour {
		t.Errorf("nothing came, for %s", silent)
	}
	for round := range 3 {
		must(t, r.Round(t.Context()))
		w.write(a, 3, "true")
		must(t, w.look(a, fresh))
		got, err := fresh.Witnessed(time.Now())
		if err != nil || len(got.By) != 3 || got.Size != uint64(5+3*round) || time.Since(got.At) > time.Minute {
			t.Fatalf("round %d: %d records, by %v, %v", round, got.Size, got.By, err)
		}
	}
	// A receipt is in the cosigned tree, with the cosignatures, once that holds the record.
	for index, want := range map[uint64]bool{0: true, 10: true, 11: false, 13: false} {
		got, err := auditv1.NewHistoryServiceClient(w.dial(a, optionsv1.Role_ROLE_OPERATOR, "ada")).GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: index})
		must(t, err)
		_, err = logproof.VerifyReceipt(got.GetReceipt(), w.keys())
		must(t, err)
		if _, err := w.trusted().OpenWitnessed(got.GetReceipt().GetCheckpoint(), w.keys(), time.Now()); (err == nil) != want {
			t.Errorf("the receipt of record %d, with a quorum's cosignatures %v: %v", index, want, err)
		}
	}
	// Audit starts again, and so does the relay, which knows nothing of what it did.
	a.close()
	a = w.audit(w.dir)
	again := w.verifier(nil, w.trusted)
	must(t, w.look(a, again))
	if got, _ := again.Witnessed(time.Now()); got.Size != 11 || len(got.By) != 3 {
		t.Errorf("after audit's restart: %d records, by %v", got.Size, got.By)
	}
	must(t, w.relay(a).Round(t.Context()))
	must(t, w.look(a, again))
	if got, _ := again.Witnessed(time.Now()); got.Size != 14 || len(got.By) != 3 {
		t.Errorf("after the relay's restart: %d records, by %v\n%s", got.Size, got.By, w.logged())
	}
	// Of a newer checkpoint that fewer cosign nothing is kept, and why is said.
	for _, down := range w.witnesses[1:] {
		down.answer = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	}
	w.write(a, 1, "true")
	if err := w.relay(a).Round(t.Context()); !fault.Is(err, callv1.Code_CODE_CONFLICT) || !strings.Contains(err.Error(), "what is kept says more") {
		t.Errorf("one of three: %v", err)
	}
	if silent := a.cosigned.Silent(time.Now().Add(time.Hour)); silent < time.Hour || silent > time.Hour+time.Minute {
		t.Errorf("a quorum cosigned a moment ago, and %s are told an hour later", silent)
	}
	must(t, os.Remove(filepath.Join(w.kit.TrustDir, trust.FileWitnesses)))
	must(t, w.kit.Trust.Reload())
	if silent := a.cosigned.Silent(time.Now().Add(time.Hour)); silent != 0 {
		t.Errorf("there are no witnesses, and they are silent for %s", silent)
	}
}

// TestHostileWitness: one witness that lies or hangs up takes nothing from the others, and adds nothing.
func TestHostileWitness(t *testing.T) {
	for name, answer := range map[string]func(w *world, out http.ResponseWriter, in *http.Request){
		"down": func(_ *world, out http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
		"nonsense": func(_ *world, out http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(out, "— hello\n\n\x00")
		},
		"much of it": func(_ *world, out http.ResponseWriter, _ *http.Request) { _, _ = out.Write(make([]byte, 4<<20)) },
		"a redirect": func(_ *world, out http.ResponseWriter, in *http.Request) {
			http.Redirect(out, in, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		},
		"conflicts ever": func(_ *world, out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "text/x.tlog.size")
			out.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(out, "3\n")
		},
		"conflict ahead": func(_ *world, out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "text/x.tlog.size")
			out.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(out, "900\n")
		},
		"another's words": func(w *world, out http.ResponseWriter, in *http.Request) { w.witnesses[0].handler.ServeHTTP(out, in) },
		"words of before": func(w *world, out http.ResponseWriter, _ *http.Request) {
			b, err := note.Sign(&note.Note{Text: "durward.local/audit/main\n1\n" + strings.Repeat("A", 43) + "=\n"}, w.witnesses[2].signer)
			must(w.t, err)
			_, _ = io.WriteString(out, strings.SplitN(string(b), "\n\n", 2)[1])
		},
		"clock ahead": func(w *world, out http.ResponseWriter, in *http.Request) {
			signer, err := logproof.NewCosigner(w.witnesses[2].signer.Name(), w.witnesses[2].key, func() time.Time { return time.Now().Add(time.Hour) })
			must(w.t, err)
			ahead, err := witness.New(witness.Config{Signer: signer, Logs: w.keys(), Dir: w.t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
			must(w.t, err)
			ahead.Handler().ServeHTTP(out, in)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, 2, "")
			a := w.audit(w.dir)
			w.write(a, 5, "true")
			w.witnesses[2].answer = func(out http.ResponseWriter, in *http.Request) { answer(w, out, in) }
			must(t, w.relay(a).Round(t.Context()))
			k := w.verifier(nil, w.trusted)
			must(t, w.look(a, k))
			got, err := k.Witnessed(time.Now())
			if err != nil || got.Size != 5 || len(got.By) != 2 || strings.Contains(strings.Join(got.By, " "), w.witnesses[2].signer.Name()) {
				t.Errorf("%d records, by %v, %v", got.Size, got.By, err)
			}
			if !strings.Contains(w.logged(), w.witnesses[2].server.URL) || strings.Contains(w.logged(), logproof.ErrFuture.Error()) != (name == "clock ahead") {
				t.Errorf("the relay said nothing of it:\n%s", w.logged())
			}
		})
	}
}

// TestHostileRelay: who took the relay over can bring nothing that does not stand, and take nothing away.
func TestHostileRelay(t *testing.T) {
	w := newWorld(t, 3, 2, "")
	a := w.audit(w.dir)
	w.write(a, 5, "true")
	client := auditv1.NewWitnessServiceClient(w.dial(a, optionsv1.Role_ROLE_RELAY, "main"))
	five, err := client.GetCheckpoint(t.Context(), &auditv1.GetCheckpointRequest{})
	must(t, err)
	w.write(a, 2, "true")
	must(t, w.relay(a).Round(t.Context()))
	seven, err := client.GetCheckpoint(t.Context(), &auditv1.GetCheckpointRequest{})
	must(t, err)
	line := func(checkpoint []byte, by note.Signer) string {
		c, err := logproof.ReadCheckpoint(checkpoint)
		must(t, err)
		b, err := note.Sign(&note.Note{Text: c.Text()}, by)
		must(t, err)
		return strings.TrimSuffix(strings.SplitN(string(b), "\n\n", 2)[1], "\n")
	}
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	impostor, err := logproof.NewCosigner(w.witnesses[0].signer.Name(), key, time.Now)
	must(t, err)
	stranger, err := logproof.NewCosigner("stranger.example", key, time.Now)
	must(t, err)
	fork := w.audit(t.TempDir())
	w.write(fork, 5, "another")
	_, forked := fork.log.Newest()
	zero, one := w.witnesses[0].signer, w.witnesses[1].signer
	for _, tc := range []struct {
		name       string
		checkpoint []byte
		lines      []string
		want       callv1.Code
	}{
		{"an impostor's line", seven.GetCheckpoint(), []string{line(seven.GetCheckpoint(), impostor)}, callv1.Code_CODE_INVALID_ARGUMENT},
		{"a good line and an impostor's", seven.GetCheckpoint(), []string{line(seven.GetCheckpoint(), zero), line(seven.GetCheckpoint(), impostor)}, callv1.Code_CODE_INVALID_ARGUMENT},
		{"another checkpoint's line", seven.GetCheckpoint(), []string{line(five.GetCheckpoint(), zero)}, callv1.Code_CODE_INVALID_ARGUMENT},
		{"two lines in one", seven.GetCheckpoint(), []string{line(seven.GetCheckpoint(), zero) + "\n" + line(seven.GetCheckpoint(), one)}, callv1.Code_CODE_INVALID_ARGUMENT},
		{"a fork that the witnesses would cosign", forked, []string{line(forked, zero), line(forked, one)}, callv1.Code_CODE_INVALID_ARGUMENT},
		{"no checkpoint", []byte("x"), []string{line(seven.GetCheckpoint(), zero)}, callv1.Code_CODE_INVALID_ARGUMENT},
		{"an older checkpoint, with a quorum", five.GetCheckpoint(), []string{line(five.GetCheckpoint(), zero), line(five.GetCheckpoint(), one)}, callv1.Code_CODE_CONFLICT},
		{"the newest again", seven.GetCheckpoint(), []string{line(seven.GetCheckpoint(), zero)}, 0},
		// A checkpoint may bear signatures of anybody's beside its log's, which alone makes it one.
		{"a stranger's signature before the log's", bytes.Replace(seven.GetCheckpoint(), []byte("\n\n"), []byte("\n\n"+line(seven.GetCheckpoint(), stranger)+"\n"), 1),
			[]string{line(seven.GetCheckpoint(), zero)}, 0},
	} {
		_, err := client.AddCosignatures(t.Context(), &auditv1.AddCosignaturesRequest{Checkpoint: tc.checkpoint, Cosignatures: tc.lines})
		if tc.want == 0 && err != nil || tc.want != 0 && !fault.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		k := w.verifier(nil, w.trusted)
		must(t, w.look(a, k))
		if got, _ := k.Witnessed(time.Now()); got.Size != 7 || len(got.By) != 3 {
			t.Errorf("%s: %d records are cosigned, by %v", tc.name, got.Size, got.By)
		}
	}
	w.write(a, 1, "true")
	eight, err := client.GetCheckpoint(t.Context(), &auditv1.GetCheckpointRequest{})
	must(t, err)
	// One witness's word on a newer tree is worth less than a quorum's on an older one.
	if _, err := client.AddCosignatures(t.Context(), &auditv1.AddCosignaturesRequest{Checkpoint: eight.GetCheckpoint(), Cosignatures: []string{line(eight.GetCheckpoint(), zero)}}); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("fewer than a quorum: %v", err)
	}
	// Once other witnesses are trusted, what is kept has no quorum any more, and the newer tree is the better one.
	w.kit.WriteTrust(trust.FileWitnesses, fmt.Appendf(nil, "quorum: 2\nwitnesses:\n  - %s\n  - %s\n", zero.String(), stranger.String()))
	must(t, w.kit.Trust.Reload())
	if _, err := client.AddCosignatures(t.Context(), &auditv1.AddCosignaturesRequest{Checkpoint: eight.GetCheckpoint(), Cosignatures: []string{line(eight.GetCheckpoint(), zero)}}); err != nil {
		t.Errorf("after witnesses.yaml changed: %v", err)
	}
	if _, err := client.GetConsistency(t.Context(), &auditv1.GetConsistencyRequest{OldSize: 5, NewSize: 900}); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("a tree that is not there: %v", err)
	}
}

// rewritten is the log of another history with the same key, on the state folder that the true one left: what a thief of the key and of
// audit's files makes.
func (w *world) rewritten(a *audit, n int) *audit {
	w.t.Helper()
	a.close()
	dir := w.t.TempDir()
	// The thief keeps what witnesses said of the true history.
	b, err := os.ReadFile(filepath.Join(w.dir, "cosigned"))
	if err == nil {
		must(w.t, os.WriteFile(filepath.Join(dir, "cosigned"), b, 0o600))
	}
	other := w.audit(dir)
	w.write(other, n, "what never happened")
	return other
}

// TestRewriteWithTheStolenKey: the whole log is written anew and signed with its own key, shorter, as long and longer. It is found by
// whoever holds a checkpoint, by a verifier that has seen nothing and knows witnesses, and by the witnesses; and nothing that the thief
// can show makes it fresh. Without witnesses it passes before a verifier that has seen nothing.
func TestRewriteWithTheStolenKey(t *testing.T) {
	for name, n := range map[string]int{"shorter": 4, "as long": 6, "longer": 40} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, 2, "1m")
			a := w.audit(w.dir)
			w.write(a, 6, "true")
			must(t, w.relay(a).Round(t.Context()))
			kept := &memory{}
			sink := w.verifier(kept, w.trusted)
			must(t, w.look(a, sink))
			auditor, err := sink.Witnessed(time.Now()) // kept elsewhere, as a file
			must(t, err)
			thief := w.rewritten(a, n)

			if err := w.look(thief, sink); !errors.Is(err, logproof.ErrFork) && !errors.Is(err, logproof.ErrRollback) {
				t.Errorf("a sink that has seen the true log: %v", err)
			}
			if err := w.look(thief, w.verifier(kept, nil)); !errors.Is(err, logproof.ErrFork) && !errors.Is(err, logproof.ErrRollback) {
				t.Errorf("a program that kept its checkpoint over a restart, without witnesses: %v", err)
			}
			_, newest := thief.log.Newest()
			forged, err := logproof.OpenCheckpoint(newest, w.keys())
			must(t, err)
			proof, _ := thief.log.Consistency(t.Context(), min(auditor.Size, forged.Size), forged.Size)
			if err := logproof.VerifyConsistency(auditor.Checkpoint, forged, proof); err == nil {
				t.Error("an auditor who holds a cosigned checkpoint takes the other history")
			}

			// The thief's audit does not show what was cosigned of the true history, and witnesses cosign no other.
			if err := w.relay(thief).Round(t.Context()); err != nil {
				t.Errorf("a round of the relay: %v", err)
			}
			if !strings.Contains(w.logged(), "ANOTHER HISTORY") && !strings.Contains(w.logged(), "PUT BACK") {
				t.Errorf("the relay does not say so:\n%s", w.logged())
			}
			fresh := w.verifier(nil, w.trusted)
			must(t, w.look(thief, fresh))
			if got, err := fresh.Witnessed(time.Now()); err == nil || !got.IsZero() {
				t.Errorf("a verifier that has seen nothing, where changes wait for witnesses: %v, %v", got.By, err)
			}
			// It shows it all the same, beside its own head.
			shown := &auditv1.GetHeadResponse{Checkpoint: newest, Witnessed: auditor.Signed, WitnessedConsistency: proof}
			fresh = w.verifier(nil, w.trusted)
			if err := fresh.AcceptAnswer(t.Context(), shown, time.Now()); !errors.Is(err, logproof.ErrFork) && !errors.Is(err, logproof.ErrRollback) || !fresh.Held().IsZero() {
				t.Errorf("a verifier that has seen nothing, shown what was cosigned: %v, holds %d", err, fresh.Held().Size)
			}

			// The negative control: without witnesses the rewrite passes.
			innocent := w.verifier(nil, nil)
			if err := innocent.AcceptAnswer(t.Context(), shown, time.Now()); err != nil || innocent.Held() != forged {
				t.Errorf("without witnesses: %v", err)
			}
		})
	}
}

// TestRecorderSeesTheRewrite: a sink's recorder, which has seen nothing yet, records nothing in a log that witnesses cosigned otherwise,
// and says where changes have to wait.
func TestRecorderSeesTheRewrite(t *testing.T) {
	w := newWorld(t, 1, 1, "1m")
	a := w.audit(w.dir)
	w.write(a, 3, "true")
	open := func(a *audit) *recorder.Recorder {
		r, err := recorder.Open(t.Context(), w.dial(a, optionsv1.Role_ROLE_VAULT, "main"), w.kit.ID(optionsv1.Role_ROLE_AUDIT, "main").String(), w.kit.Trust, recorder.Config{
			Writer: w.kit.ID(optionsv1.Role_ROLE_VAULT, "main").String(), Logger: slog.New(slog.DiscardHandler),
		})
		must(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = r.Close(ctx) // what waits is lost on purpose
		})
		return r
	}
	record := &auditv1.Record{Kind: auditv1.Kind_KIND_ASKED, Status: auditv1.Status_STATUS_OK}
	before := open(a)
	if _, err := before.Record(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if before.Witnessed() == nil {
		t.Error("changes do not wait although nobody cosigned")
	}
	must(t, w.relay(a).Round(t.Context()))
	after := open(a)
	if _, err := after.Record(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if err := after.Witnessed(); err != nil {
		t.Errorf("changes wait although a quorum cosigned: %v", err)
	}
}
