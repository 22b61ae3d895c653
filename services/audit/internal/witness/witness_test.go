package witness

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"durward.internal/services/platform/logproof"
)

const origin = "durward.local/audit/main"

// history is a log of made-up leaves.
type history struct {
	t      *testing.T
	signer note.Signer
	key    note.Verifier
	hashes []tlog.Hash
	size   int64
}

func newHistory(t *testing.T, name string) *history {
	t.Helper()
	secret, public, err := note.GenerateKey(nil, name)
	must(t, err)
	h := &history{t: t}
	h.signer, err = note.NewSigner(secret)
	must(t, err)
	h.key, err = note.NewVerifier(public)
	must(t, err)
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *history) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = h.hashes[index]
	}
	return out, nil
}

// grow adds leaves up to a size, and returns h.
func (h *history) grow(size int64, said string) *history {
	for ; h.size < size; h.size++ {
		stored, err := tlog.StoredHashes(h.size, fmt.Append(nil, said, h.size), h)
		must(h.t, err)
		h.hashes = append(h.hashes, stored...)
	}
	return h
}

func (h *history) signed(size int64) []byte {
	root, err := tlog.TreeHash(size, h)
	must(h.t, err)
	b, err := logproof.SignCheckpoint(logproof.Checkpoint{Origin: h.signer.Name(), Size: uint64(size), Root: root}, h.signer)
	must(h.t, err)
	return b
}

// request is what an honest log asks for.
func (h *history) request(old, size int64) []byte {
	var proof []tlog.Hash
	if old > 0 && old < size {
		var err error
		proof, err = tlog.ProveTree(size, old, h)
		must(h.t, err)
	}
	return FormatRequest(uint64(old), proof, h.signed(size))
}

type bench struct {
	t      *testing.T
	dir    string
	logs   []note.Verifier
	signer *logproof.Cosigner
	said   bytes.Buffer
}

func newBench(t *testing.T, logs ...note.Verifier) *bench {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	b := &bench{t: t, dir: t.TempDir(), logs: logs}
	b.signer, err = logproof.NewCosigner("witness.example/one", key, time.Now)
	must(t, err)
	return b
}

// start starts the witness, again on the same state.
func (b *bench) start() http.Handler {
	b.t.Helper()
	w, err := New(Config{Signer: b.signer, Logs: b.logs, Dir: b.dir, Logger: slog.New(slog.NewTextHandler(&b.said, nil))})
	must(b.t, err)
	return w.Handler()
}

func post(h http.Handler, body []byte) (int, string, string) {
	out := httptest.NewRecorder()
	h.ServeHTTP(out, httptest.NewRequest(http.MethodPost, "/add-checkpoint", bytes.NewReader(body)))
	b, _ := io.ReadAll(out.Body)
	return out.Code, out.Header().Get("Content-Type"), string(b)
}

// cosigned checks an answer: the lines are the witness's word on that checkpoint.
func (b *bench) cosigned(signed []byte, lines string) {
	b.t.Helper()
	w := logproof.Witnesses{Keys: []*logproof.Witness{b.signer.Witness}, Quorum: 1}
	if _, err := w.OpenWitnessed(append(bytes.Clone(signed), lines...), b.logs, time.Now()); err != nil {
		b.t.Errorf("the cosignature does not stand: %v\n%s", err, lines)
	}
}

// TestAddCheckpoint is the protocol's table: what is answered to what, and that nothing moves unless it is 200.
func TestAddCheckpoint(t *testing.T) {
	honest := newHistory(t, origin).grow(20, "true ")
	other := newHistory(t, "durward.local/audit/other").grow(20, "true ")
	fork := newHistory(t, origin)
	fork.signer, fork.key = honest.signer, honest.key
	fork.grow(20, "another ")
	impostor := newHistory(t, origin).grow(20, "true ")
	cut := func(b []byte) []byte { return bytes.Replace(b, []byte("\n\n"), []byte("\n"), 1) }
	twisted, err := tlog.ProveTree(12, 7, fork)
	must(t, err)
	for _, tc := range []struct {
		name string
		body []byte
		code int
		want string
	}{
		{"another log's", other.request(0, 5), 404, "not known here"},
		{"no log's", FormatRequest(0, nil, []byte("nobody\n1\nx\n\n— nobody x\n")), 404, "not known here"},
		{"signed by a stranger under the log's name", impostor.request(7, 12), 403, "no known key"},
		{"unsigned", FormatRequest(7, nil, []byte(strings.SplitAfter(string(honest.signed(12)), "\n\n")[0])), 400, "malformed"},
		{"a smaller log than it extends", FormatRequest(7, nil, honest.signed(5)), 400, "malformed"},
		{"empty", nil, 400, "malformed"},
		{"nothing but a head", []byte("old 7"), 400, "no empty line"},
		{"no empty line", cut(FormatRequest(7, nil, nil)), 400, "malformed"},
		{"no old size", bytes.Replace(honest.request(7, 12), []byte("old 7"), []byte("size 7"), 1), 400, "malformed"},
		{"an old size of another spelling", bytes.Replace(honest.request(7, 12), []byte("old 7"), []byte("old 07"), 1), 400, "malformed"},
		{"a hash that is none", bytes.Replace(honest.request(7, 12), []byte("=\n"), []byte("\n"), 1), 400, "malformed"},
		{"too long a proof", FormatRequest(7, make([]tlog.Hash, 64), honest.signed(12)), 400, "malformed"},
		{"more than fits", append(honest.request(7, 12), make([]byte, maxBody)...), 400, "larger than"},
		{"from where it was not", honest.request(5, 12), 409, "7\n"},
		{"from the beginning again", honest.request(0, 12), 409, "7\n"},
		{"from further than it was", honest.request(9, 12), 409, "7\n"},
		{"rolled back", honest.request(5, 5), 409, "7\n"},
		{"a fork of the same size", fork.request(7, 7), 409, "7\n"},
		{"a fork that has grown", fork.request(7, 12), 422, "not proved"},
		{"the true log with the fork's proof", FormatRequest(7, twisted, honest.signed(12)), 422, "not proved"},
		{"the fork with the true log's proof", bytes.Replace(honest.request(7, 12), honest.signed(12), fork.signed(12), 1), 422, "not proved"},
		{"without a proof", FormatRequest(7, nil, honest.signed(12)), 422, "not proved"},
		{"a proof where there is nothing to prove", FormatRequest(7, twisted[:1], honest.signed(7)), 422, "nothing to prove"},
		{"the same again", honest.request(7, 7), 200, "— witness.example/one "},
		{"grown", honest.request(7, 12), 200, "— witness.example/one "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, honest.key)
			w := b.start()
			if code, _, body := post(w, honest.request(0, 7)); code != http.StatusOK {
				t.Fatalf("the first checkpoint: %d %s", code, body)
			}
			code, kind, body := post(w, tc.body)
			if code != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("%d %q, want %d with %q", code, body, tc.code, tc.want)
			}
			if (kind == "text/x.tlog.size") != (tc.code == http.StatusConflict) {
				t.Errorf("content type %q", kind)
			}
			size := int64(7)
			if tc.code == http.StatusOK {
				_, _, signed, err := parseRequest(tc.body)
				must(t, err)
				b.cosigned(signed, body)
				if tc.name == "grown" {
					size = 12
				}
			}
			// Whatever happened, also to the process: it goes on from where it was.
			w = b.start()
			if code, _, body := post(w, honest.request(size, 20)); code != http.StatusOK {
				t.Errorf("afterwards: %d %s", code, body)
			}
			if evidence, _ := filepath.Glob(filepath.Join(b.dir, "*.fork")); (len(evidence) > 0) != (tc.name == "a fork of the same size") {
				t.Errorf("evidence of a fork: %v", evidence)
			}
		})
	}
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		out := httptest.NewRecorder()
		newBench(t, honest.key).start().ServeHTTP(out, httptest.NewRequest(method, "/add-checkpoint", nil))
		if out.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, out.Code)
		}
	}
}

// TestPersistsBeforeItAnswers: a witness whose folder cannot be written cosigns nothing.
func TestPersistsBeforeItAnswers(t *testing.T) {
	honest := newHistory(t, origin).grow(20, "true ")
	b := newBench(t, honest.key)
	w := b.start()
	if code, _, _ := post(w, honest.request(0, 7)); code != http.StatusOK {
		t.Fatal(code)
	}
	must(t, os.RemoveAll(b.dir))
	if code, _, body := post(w, honest.request(7, 12)); code != http.StatusInternalServerError || strings.Contains(body, "—") {
		t.Errorf("%d %q", code, body)
	}
	must(t, os.Mkdir(b.dir, 0o700))
	if code, _, body := post(w, honest.request(7, 12)); code != http.StatusOK {
		t.Errorf("with its folder back: %d %s", code, body)
	}
}

// TestRefusesToStart: what is in the state folder must be of a log that it knows.
func TestRefusesToStart(t *testing.T) {
	honest, impostor := newHistory(t, origin).grow(20, "true "), newHistory(t, origin).grow(20, "true ")
	b := newBench(t, honest.key)
	post(b.start(), honest.request(0, 7))
	for name, logs := range map[string][]note.Verifier{"another key": {impostor.key}} {
		if _, err := New(Config{Signer: b.signer, Logs: logs, Dir: b.dir, Logger: slog.Default()}); !errors.Is(err, logproof.ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneHistoryUnderPressure: two histories of one key, posted at once from many sides; the witness cosigns one of them alone.
func TestOneHistoryUnderPressure(t *testing.T) {
	honest := newHistory(t, origin).grow(40, "true ")
	fork := newHistory(t, origin)
	fork.signer, fork.key = honest.signer, honest.key
	fork.grow(40, "another ")
	b := newBench(t, honest.key)
	w := b.start()
	var mu sync.Mutex
	cosigned := map[int64]map[string]bool{}
	var racers sync.WaitGroup
	for i := range 8 {
		racers.Go(func() {
			h := []*history{honest, fork}[i%2]
			for old, size := int64(0), int64(1); size <= 40; size++ {
				code, _, _ := post(w, h.request(old, size))
				if code == http.StatusOK {
					mu.Lock()
					if cosigned[size] == nil {
						cosigned[size] = map[string]bool{}
					}
					cosigned[size][string(h.signed(size))] = true
					mu.Unlock()
				}
				old = size
			}
		})
	}
	racers.Wait()
	which := map[bool]int{}
	for size, notes := range cosigned {
		if len(notes) != 1 {
			t.Errorf("%d histories of %d entries were cosigned", len(notes), size)
		}
		which[notes[string(honest.signed(size))]]++
	}
	if len(which) != 1 || len(cosigned) == 0 {
		t.Errorf("true and other checkpoints cosigned: %v", which)
	}
}

func TestKeyFile(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	path := filepath.Join(t.TempDir(), "key")
	good := logproof.FormatCosigner("witness.example/one", key)
	for name, text := range map[string]string{
		"empty": "", "a log's key": "PRIVATE+KEY+x+0c9df308+AAAA", "no name": strings.Replace(good, "witness.example/one", "", 1), "cut": good[:len(good)-9], "a space": strings.Replace(good, "example", "exa mple", 1),
	} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		if _, err := LoadKey(path); err == nil || len(text) > 20 && strings.Contains(err.Error(), text[len(text)-12:]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, os.WriteFile(path, []byte(good), 0o600))
	if s, err := LoadKey(path); err != nil || s.Name() != "witness.example/one" {
		t.Error(err)
	}
	must(t, os.Chmod(path, 0o644))
	if _, err := LoadKey(path); err == nil {
		t.Error("a key for all to read was taken")
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte("old 0\n\norigin\n1\nAAAA\n\n— x y\n"))
	f.Add([]byte("old 7"))
	f.Add([]byte("old 7\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\nx\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		old, proof, checkpoint, err := parseRequest(body)
		if err == nil && !bytes.Equal(FormatRequest(old, proof, checkpoint), body) {
			t.Errorf("%q has another spelling", body)
		}
	})
}
