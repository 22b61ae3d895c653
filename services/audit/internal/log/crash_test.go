package log_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

// crashDir makes this test binary a log that appends until it is killed.
var crashDir = flag.String("crash.dir", "", "append to the log in this folder until killed")

func TestMain(m *testing.M) {
	flag.Parse()
	if *crashDir != "" {
		fmt.Fprintln(os.Stderr, appendUntilKilled(*crashDir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// told is one line of the child: what a writer was answered.
type told struct {
	Writer     string
	Sequence   uint64
	Index      uint64
	LeafHash   []byte
	Checkpoint []byte
}

func keysIn(dir string) (note.Signer, []note.Verifier, error) {
	secret, err := os.ReadFile(filepath.Join(dir, "secret"))
	if err != nil {
		return nil, nil, err
	}
	public, err := os.ReadFile(filepath.Join(dir, "public"))
	if err != nil {
		return nil, nil, err
	}
	signer, err := note.NewSigner(string(secret))
	if err != nil {
		return nil, nil, err
	}
	v, err := note.NewVerifier(string(public))
	return signer, []note.Verifier{v}, err
}

func appendUntilKilled(dir string) error {
	signer, keys, err := keysIn(dir)
	if err != nil {
		return err
	}
	background := context.Background()
	db, err := store.Open(background, dir)
	if err != nil {
		return err
	}
	l, err := log.Open(background, log.Config{Store: db, Signer: signer, Keys: func() []note.Verifier { return keys }})
	if err != nil {
		return err
	}
	var printing sync.Mutex
	out := json.NewEncoder(os.Stdout)
	failed := make(chan error)
	for _, writer := range writers {
		go func() {
			head, err := l.Head(background, writer, 0)
			for next := head.GetLastSequence() + 1; err == nil; next++ {
				var answer *auditv1.AppendResponse
				if answer, err = l.Append(background, writer, []*auditv1.Record{{
					Sequence: next, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: fmt.Sprint("r-", next), Body: &auditv1.Body{Summary: writer},
				}}, 0); err != nil {
					break
				}
				r := answer.GetReceipts()[0]
				printing.Lock()
				err = out.Encode(told{writer, next, r.GetIndex(), r.GetLeafHash(), r.GetCheckpoint()})
				printing.Unlock()
			}
			failed <- err
		}()
	}
	return <-failed
}

// TestKilled kills a process in the middle of appends, again and again, and finds everything that it had acknowledged.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	secret, public, err := note.GenerateKey(nil, origin)
	must(t, err)
	for name, text := range map[string]string{"secret": secret, "public": public} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	signer, keys, err := keysIn(dir)
	must(t, err)
	var all []told
	for life := range 4 {
		child := exec.Command(os.Args[0], "-crash.dir", dir)
		child.Stderr = os.Stderr
		pipe, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		lines := bufio.NewReader(pipe)
		// A child that has ended by then is what the test waits for.
		deadline := time.AfterFunc(20*time.Second, func() { _ = child.Process.Kill() })
		before := len(all)
		for n := 0; ; n++ {
			line, err := lines.ReadBytes('\n')
			if errors.Is(err, io.EOF) {
				break // a line that was cut off was not acknowledged to anybody
			}
			must(t, err)
			var w told
			must(t, json.Unmarshal(line, &w))
			all = append(all, w)
			if n == 50+life*37 {
				must(t, child.Process.Kill())
			}
		}
		deadline.Stop()
		_ = child.Wait() // killed
		if len(all) == before {
			t.Fatal("the child acknowledged nothing")
		}
		db, err := store.Open(t.Context(), dir)
		must(t, err)
		l, err := log.Open(t.Context(), log.Config{Store: db, Signer: signer, Keys: func() []note.Verifier { return keys }})
		if err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		size, checkpoint := l.Newest()
		entries := verify(t, db, size, checkpoint, keys, all)
		for _, w := range all {
			e := entries[w.Index]
			if e.GetWriter() != w.Writer || e.GetRecord().GetSequence() != w.Sequence || string(e.GetLeafHash()) != string(w.LeafHash) {
				t.Fatalf("life %d: entry %d is not what was acknowledged", life, w.Index)
			}
		}
		l.Close()
		must(t, db.Close())
	}
}

// verify replays a store against its newest checkpoint and every earlier one that somebody holds and that it reaches.
func verify(t *testing.T, db *store.Store, size uint64, checkpoint []byte, keys []note.Verifier, held []told) []*auditv1.Entry {
	t.Helper()
	head, err := logproof.OpenCheckpoint(checkpoint, keys)
	must(t, err)
	replay := &logproof.Replay{}
	for _, w := range held {
		c, err := logproof.VerifyReceipt(&callv1.Receipt{Checkpoint: w.Checkpoint, Index: w.Index, LeafHash: w.LeafHash}, keys)
		if c.IsZero() {
			t.Fatal(err) // the proof itself was verified when it was given; here its checkpoint counts
		}
		replay.Expect(c)
	}
	entries, err := db.Range(t.Context(), 0, size, int(size), 1<<30)
	must(t, err)
	for _, e := range entries {
		must(t, replay.Add(e))
	}
	must(t, replay.Finish(head))
	return entries
}

// TestTornFiles opens copies of a live database whose newest writes did not all reach the disk: the write-ahead log is cut
// anywhere. What opens is a whole, earlier log, which extends every earlier checkpoint.
func TestTornFiles(t *testing.T) {
	r := newRig(t)
	for range 30 {
		writer := writers[len(r.heads)%len(writers)]
		r.append(writer, r.record(writer, "a"), r.record(writer, "b"))
	}
	read := func(suffix string) []byte {
		b, err := os.ReadFile(filepath.Join(r.dir, store.File+suffix))
		must(t, err)
		return b
	}
	main, wal := read(""), read("-wal")
	random := rand.New(rand.NewPCG(1, 2))
	sizes := map[uint64]bool{}
	for range 25 {
		// The schema's own transactions are at the beginning; a cut among them is an empty file.
		cut := len(wal)/3 + random.IntN(len(wal)*2/3)
		dir := t.TempDir()
		for suffix, b := range map[string][]byte{"": main, "-wal": wal[:cut]} {
			must(t, os.WriteFile(filepath.Join(dir, store.File+suffix), b, 0o600))
		}
		db, err := store.Open(t.Context(), dir)
		if err != nil {
			t.Fatalf("cut at %d of %d: %v", cut, len(wal), err)
		}
		cfg := r.config()
		cfg.Store = db
		l, err := log.Open(t.Context(), cfg)
		if err != nil {
			t.Fatalf("cut at %d of %d: %v", cut, len(wal), err)
		}
		size, checkpoint := l.Newest()
		sizes[size] = true
		head, err := logproof.OpenCheckpoint(checkpoint, r.keys)
		must(t, err)
		for _, c := range r.heads {
			if c.Size == size && c != head {
				t.Errorf("cut at %d: another log of %d entries", cut, size)
			}
			if c.Size > size {
				continue
			}
			_, _, proof, err := l.Export(t.Context(), c.Size)
			must(t, err)
			if err := logproof.VerifyConsistency(c, head, proof); err != nil {
				t.Errorf("cut at %d: from %d to %d: %v", cut, c.Size, size, err)
			}
		}
		l.Close()
		must(t, db.Close())
	}
	if len(sizes) < 5 {
		t.Errorf("only %d different logs came out: the cuts test little", len(sizes))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
