package audit

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/trust"
)

// receipts is a log of five records, and the folder that holds its public key.
type receipts struct {
	t       *testing.T
	folder  string
	entries []*auditv1.Entry
	hashes  []tlog.Hash
	signer  note.Signer
}

func newReceipts(t *testing.T) *receipts {
	r := &receipts{t: t, folder: t.TempDir()}
	secret, public, err := note.GenerateKey(nil, "durward.local/audit/main")
	r.must(err)
	r.signer, err = note.NewSigner(secret)
	r.must(err)
	r.must(os.WriteFile(filepath.Join(r.folder, trust.FileLogKeys), []byte(public+"\n"), 0o600))
	for i := range uint64(5) {
		e := &auditv1.Entry{
			Index: i, Writer: "spiffe://durward.local/executor/main", LoggedAt: timestamppb.New(clitest.Now.Add(time.Duration(i) * time.Second)),
			Salt:   bytes.Repeat([]byte{byte(i + 1)}, logproof.SaltSize),
			Record: &auditv1.Record{Sequence: i + 1, Kind: auditv1.Kind_KIND_OUTCOME, Time: timestamppb.New(clitest.Now), Tool: "start_service", Body: &auditv1.Body{Summary: "Started demo-chat."}},
		}
		r.must(logproof.Seal(e))
		stored, err := tlog.StoredHashes(int64(i), e.GetLeaf(), tlog.HashReaderFunc(r.read))
		r.must(err)
		r.hashes, r.entries = append(r.hashes, stored...), append(r.entries, e)
	}
	return r
}

func (r *receipts) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *receipts) read(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = r.hashes[index]
	}
	return out, nil
}

// of is the receipt of a record in the whole log.
func (r *receipts) of(index uint64) *callv1.Receipt {
	size := int64(len(r.entries))
	root, err := tlog.TreeHash(size, tlog.HashReaderFunc(r.read))
	r.must(err)
	signed, err := logproof.SignCheckpoint(logproof.Checkpoint{Origin: r.signer.Name(), Size: uint64(size), Root: root}, r.signer)
	r.must(err)
	path, err := tlog.ProveRecord(size, int64(index), tlog.HashReaderFunc(r.read))
	r.must(err)
	out := &callv1.Receipt{Index: index, LeafHash: bytes.Clone(r.entries[index].GetLeafHash()), Checkpoint: signed}
	for _, h := range path {
		out.Inclusion = append(out.Inclusion, h[:])
	}
	return out
}

func (r *receipts) json(receipt any) []byte {
	b, err := json.Marshal(receipt)
	r.must(err)
	return b
}

// prove runs the command on a file and returns what it printed and its exit code.
func (r *receipts) prove(file []byte, asJSON bool, args ...string) (string, int, error) {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "receipt.json")
	r.must(os.WriteFile(path, file, 0o600))
	core, out, _ := clitest.Printing(asJSON)
	cmd := (&app{core}).auditReceiptCommand()
	cmd.SetArgs(append(args, "--trust", r.folder, path))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(r.t.Context())
	if err == nil {
		return out.String(), cli.ExitOK, nil
	}
	var p *cli.Problem
	if !errors.As(err, &p) {
		r.t.Fatalf("not a problem with an exit code: %v", err)
	}
	return out.String(), p.Code, err
}

// TestReceiptRefusesWhatWasChanged: each part of a receipt, changed, proves nothing.
func TestReceiptRefusesWhatWasChanged(t *testing.T) {
	r := newReceipts(t)
	stranger := newReceipts(t)
	good := logproof.NewReceipt(r.of(2))
	change := func(f func(*logproof.Receipt)) []byte {
		changed := logproof.NewReceipt(r.of(2))
		f(&changed)
		return r.json(changed)
	}
	whole, err := output.MessageJSON(&auditv1.GetRecordResponse{Entry: r.entries[2], Receipt: r.of(2)})
	r.must(err)
	other, err := output.MessageJSON(&auditv1.GetRecordResponse{Entry: r.entries[1], Receipt: r.of(2)})
	r.must(err)
	text := string(r.json(good))
	for _, tc := range []struct {
		name string
		file []byte
		want string
	}{
		{"another index", change(func(r *logproof.Receipt) { r.Index = 3 }), "nothing is proved"},
		{"an index beyond the log", change(func(r *logproof.Receipt) { r.Index = 5 }), "nothing is proved"},
		{"another leaf", change(func(c *logproof.Receipt) { c.LeafHash = r.entries[1].GetLeafHash() }), "nothing is proved"},
		{"a bit of the leaf", change(func(r *logproof.Receipt) { r.LeafHash[0] ^= 1 }), "nothing is proved"},
		{"a bit of the path", change(func(r *logproof.Receipt) { r.Inclusion[1][31] ^= 1 }), "nothing is proved"},
		{"a path cut short", change(func(r *logproof.Receipt) { r.Inclusion = r.Inclusion[1:] }), "nothing is proved"},
		{"a longer path", change(func(r *logproof.Receipt) { r.Inclusion = append(r.Inclusion, r.Inclusion[0]) }), "nothing is proved"},
		{"no path", change(func(r *logproof.Receipt) { r.Inclusion = [][]byte{} }), "nothing is proved"},
		{"another size", change(func(r *logproof.Receipt) { r.Checkpoint = strings.Replace(r.Checkpoint, "\n5\n", "\n6\n", 1) }), "no key in log_keys"},
		{"another log's name", change(func(r *logproof.Receipt) { r.Checkpoint = strings.Replace(r.Checkpoint, "main\n", "mein\n", 1) }), "no key in log_keys"},
		{"no signature", change(func(r *logproof.Receipt) { r.Checkpoint = strings.SplitAfter(r.Checkpoint, "\n\n")[0] }), "malformed"},
		{"another key's log", r.json(logproof.NewReceipt(stranger.of(2))), "no key in log_keys"},
		{"no checkpoint", change(func(r *logproof.Receipt) { r.Checkpoint = "" }), "malformed"},
		{"a member more", []byte(strings.Replace(text, "{", `{"valid":true,`, 1)), "not a receipt"},
		{"a member twice", []byte(strings.Replace(text, "{", `{"index":2,`, 1)), "not a receipt"},
		{"a member in capitals", []byte(strings.Replace(text, `"index"`, `"Index"`, 1)), "not a receipt"},
		{"a member less", []byte(strings.Replace(text, `"index":2,`, "", 1)), "not a receipt"},
		{"a hash of another spelling", []byte(strings.Replace(text, "=", `\n=`, 1)), "not a receipt"},
		{"a list", []byte("[]"), "not a receipt"},
		{"a reply without one", []byte(`{"_meta":{"durward/request_id":"r-1"},"content":[]}`), "nothing was recorded under it"},
		{"another record's", other, "another record's"},
		{"a record that was changed", bytes.Replace(whole, []byte("demo-chat"), []byte("demo-cat"), 1), "the record is not the one"},
		{"a record's writer that was changed", bytes.Replace(whole, []byte("/executor/"), []byte("/vault/"), 1), "the record is not the one"},
		{"a record with a member more", bytes.Replace(whole, []byte("{"), []byte(`{"proved":true,`), 1), "not a receipt"},
	} {
		out, code, err := r.prove(tc.file, false)
		if code != cli.ExitFailed || err == nil || !strings.Contains(err.Error(), tc.want) || out != "" {
			t.Errorf("%s: exit code %d, %v, printed %q; want %q", tc.name, code, err, out, tc.want)
		}
	}
	for _, file := range []string{"", "✓ record 2 is in the log", text[1:], text + "}"} {
		if out, code, err := r.prove([]byte(file), false); code != cli.ExitUsage || !strings.Contains(err.Error(), "no JSON") || out != "" {
			t.Errorf("%q: exit code %d, %v, printed %q", file, code, err, out)
		}
	}
	for name, file := range map[string]string{
		"the receipt":                  text,
		"with white space":             " \n" + strings.ReplaceAll(text, ",", " ,\n"),
		"a tool's result":              `{"content":[],"_meta":{"durward/receipt":` + text + `}}`,
		"a JSON-RPC answer":            `{"jsonrpc":"2.0","id":1,"result":{"content":[],"_meta":{"durward/receipt":` + text + `}}}`,
		"what the commands here wrote": `{"status":"ok","receipt":` + text + `,"result":{}}`,
		"a record with its receipt":    string(whole),
	} {
		out, code, err := r.prove([]byte(file), false)
		if code != cli.ExitOK || !strings.Contains(out, "✓ record 2 is in the log durward.local/audit/main") {
			t.Errorf("%s: exit code %d, %v, printed %q", name, code, err, out)
		}
		if said := strings.Contains(out, "Started demo-chat."); said != (name == "a record with its receipt") {
			t.Errorf("%s: says what the record says: %v\n%s", name, said, out)
		}
	}
	if out, code, _ := r.prove(r.json(good), true); code != cli.ExitOK || !strings.Contains(out, `"log_size": 5`) || !strings.Contains(out, `"record_proved": false`) {
		t.Errorf("--json: exit code %d, %s", code, out)
	}
}

// TestReceiptAndWitnesses: a stranger with the witnesses' keys sees from a receipt alone whether a quorum of them cosigned it, and that
// one whose cosignature was changed or is of another log proves nothing.
func TestReceiptAndWitnesses(t *testing.T) {
	r := newReceipts(t)
	var keys []string
	var signers []note.Signer
	for i, name := range []string{"witness.example/one", "witness.example/two"} {
		w, err := logproof.NewCosigner(name, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, 32)), func() time.Time { return clitest.Now })
		r.must(err)
		keys, signers = append(keys, w.String()), append(signers, w)
	}
	of := func(by ...note.Signer) logproof.Receipt {
		receipt := r.of(2)
		public, err := trust.ReadLogKeys(r.folder)
		r.must(err)
		n, err := note.Open(receipt.GetCheckpoint(), note.VerifierList(public...))
		r.must(err)
		receipt.Checkpoint, err = note.Sign(n, by...)
		r.must(err)
		return logproof.NewReceipt(receipt)
	}
	if out, code, err := r.prove(r.json(of(signers...)), false); code != cli.ExitOK || strings.Contains(out, "cosigned") {
		t.Errorf("who names no witnesses: exit code %d, %v, %s", code, err, out)
	}
	if _, code, err := r.prove(r.json(of(signers...)), false, "--witnessed"); code != cli.ExitUsage || !strings.Contains(err.Error(), "names no witnesses") {
		t.Errorf("who names no witnesses and demands them: exit code %d, %v", code, err)
	}
	file := filepath.Join(r.folder, trust.FileWitnesses)
	r.must(os.WriteFile(file, fmt.Appendf(nil, "quorum: 2\nwitnesses: [%q, %q]\n", keys[0], keys[1]), 0o600))
	spoilt := of(signers...)
	at := strings.LastIndex(spoilt.Checkpoint, "=")
	spoilt.Checkpoint = spoilt.Checkpoint[:at-8] + strings.Map(func(c rune) rune { return 'A' + 'Z' - min(max(c, 'A'), 'Z') }, spoilt.Checkpoint[at-8:at-4]) + spoilt.Checkpoint[at-4:]
	for _, tc := range []struct {
		name    string
		receipt logproof.Receipt
		demand  bool
		code    int
		want    string
	}{
		{"nobody's, demanded", of(), true, cli.ExitFailed, "no quorum of witnesses"},
		{"one of two, demanded", of(signers[1]), true, cli.ExitFailed, "no quorum of witnesses"},
		{"a changed cosignature", spoilt, false, cli.ExitFailed, "nothing is proved"},
		{"nobody's", of(), false, cli.ExitOK, "Fewer witnesses cosigned it than the 2"},
		{"one of two", of(signers[0]), false, cli.ExitOK, "Fewer witnesses cosigned it than the 2"},
		{"both", of(signers...), false, cli.ExitOK, "witness.example/one, witness.example/two cosigned it at"},
		{"both, demanded", of(signers...), true, cli.ExitOK, "cosigned it at"},
	} {
		var args []string
		if tc.demand {
			args = []string{"--witnessed"}
		}
		out, code, err := r.prove(r.json(tc.receipt), false, args...)
		if err != nil {
			out += err.Error()
		}
		if code != tc.code || !strings.Contains(strings.Join(strings.Fields(out), " "), tc.want) {
			t.Errorf("%s: exit code %d, want %d; %s", tc.name, code, tc.code, out)
		}
	}
	if out, code, _ := r.prove(r.json(of(signers...)), true); code != cli.ExitOK || !strings.Contains(out, `"witnessed_by"`) {
		t.Errorf("--json: exit code %d, %s", code, out)
	}
	r.must(os.WriteFile(file, []byte("quorum: 3\nwitnesses: []\n"), 0o600))
	if _, code, err := r.prove(r.json(of()), false); code != cli.ExitUsage {
		t.Errorf("a broken %s: exit code %d, %v", trust.FileWitnesses, code, err)
	}
}

// TestReceiptOfTheOnlyRecord: a log of one record needs no path.
func TestReceiptOfTheOnlyRecord(t *testing.T) {
	r := newReceipts(t)
	r.entries, r.hashes = r.entries[:1], r.hashes[:1]
	if _, code, err := r.prove(r.json(logproof.NewReceipt(r.of(0))), false); code != cli.ExitOK {
		t.Error(err)
	}
}

// TestReceiptUsage: what cannot be read is no verdict on a receipt.
func TestReceiptUsage(t *testing.T) {
	r := newReceipts(t)
	file := filepath.Join(r.folder, trust.FileLogKeys)
	for name, args := range map[string][]string{
		"no such file": {"--trust", r.folder, filepath.Join(r.folder, "absent")},
		"a folder":     {"--trust", r.folder, r.folder},
		"no keys":      {"--trust", t.TempDir(), file},
	} {
		core, _, _ := clitest.Printing(false)
		cmd := (&app{core}).auditReceiptCommand()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		var p *cli.Problem
		if err := cmd.ExecuteContext(t.Context()); !errors.As(err, &p) || p.Code != cli.ExitUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
}
