package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
)

// notes writes that many records as an operator.
func notes(t *testing.T, h *harness.Host, operator string, from, n int) {
	t.Helper()
	id, err := identity.New(identity.DefaultTrustDomain, optionsv1.Role_ROLE_OPERATOR, operator)
	must(t, err)
	client := auditv1.NewLogServiceClient(h.DialAs(id, harness.Audit))
	request := &auditv1.AppendRequest{}
	for i := range n {
		request.Records = append(request.Records, &auditv1.Record{
			Sequence: uint64(from + i), Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.Now(), Body: &auditv1.Body{Summary: fmt.Sprint("for few eyes: ", from+i)},
		})
	}
	if _, err := client.Append(t.Context(), request); err != nil {
		t.Fatal(err)
	}
}

// TestOthersReadTheTiles exports a log to a folder of tiles twice, while it grows, and has somebody else's implementation of C2SP's
// formats verify the folder: the checkpoint by the log's public key, every leaf in the tree, and a record's receipt.
func TestOthersReadTheTiles(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	dir := h.Path("tiles")
	written := 1
	for _, n := range []int{100, 300} {
		notes(t, h, "scribe", written, n)
		written += n
		if out := h.Run("", "audit", "export", "--format", "tiles", dir); out.Code != 0 {
			t.Fatalf("exit status %d: %s", out.Code, out.Stderr)
		}
		tree := otherwiseVerified(t, h, dir)
		if tree.N < int64(n) {
			t.Fatalf("%d entries in the folder", tree.N)
		}
		files, err := torchwood.NewTileFS(os.DirFS(dir))
		must(t, err)
		client, err := torchwood.NewClient(files)
		must(t, err)
		seen, secrets := int64(0), 0
		for i, entry := range client.AllEntries(t.Context(), tree, 0) {
			if i != seen || !strings.HasPrefix(string(entry), "{") {
				t.Fatalf("entry %d after %d: %q", i, seen, entry)
			}
			if strings.Contains(string(entry), "for few eyes") {
				secrets++
			}
			seen++
		}
		if err := client.Err(); err != nil || seen != tree.N || secrets > 0 {
			t.Fatalf("%d of %d entries, %d with their bodies: %v", seen, tree.N, secrets, err)
		}
	}
	// A receipt's path, as the other implementation wants a proof.
	var receipt struct {
		Receipt struct {
			Index      int64
			LeafHash   []byte `json:"leaf_hash"`
			Inclusion  []tlog.Hash
			Checkpoint []byte
		}
	}
	h.DurwardJSON(&receipt, "audit", "show", "42")
	key := h.Trust().Current().LogKeys[0]
	proof := torchwood.FormatProof(receipt.Receipt.Index, receipt.Receipt.Inclusion, receipt.Receipt.Checkpoint)
	if err := torchwood.VerifyProof(torchwood.ThresholdPolicy(2, torchwood.OriginPolicy(key.Name()), torchwood.SingleVerifierPolicy(key)), tlog.Hash(receipt.Receipt.LeafHash), proof); err != nil {
		t.Errorf("the receipt of record 42: %v\n%s", err, proof)
	}

	// A tile that was changed is seen, here and elsewhere.
	tile := filepath.Join(dir, "tile", "0", "000")
	raw, err := os.ReadFile(tile)
	must(t, err)
	raw[40] ^= 1
	must(t, os.WriteFile(tile, raw, 0o644))
	files, err := torchwood.NewTileFS(os.DirFS(dir))
	must(t, err)
	client, err := torchwood.NewClient(files)
	must(t, err)
	for range client.AllEntries(t.Context(), otherwiseVerified(t, h, dir), 0) { //nolint:revive // all that counts is how it ends
	}
	if client.Err() == nil {
		t.Error("a changed tile was taken for whole")
	}
}

// otherwiseVerified opens a folder's checkpoint with torchwood.
func otherwiseVerified(t *testing.T, h *harness.Host, dir string) tlog.Tree {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "checkpoint"))
	must(t, err)
	key := h.Trust().Current().LogKeys[0]
	checkpoint, _, err := torchwood.VerifyCheckpoint(raw, torchwood.ThresholdPolicy(2, torchwood.OriginPolicy(key.Name()), torchwood.SingleVerifierPolicy(key)))
	must(t, err)
	stranger, _, err := note.GenerateKey(nil, key.Name())
	must(t, err)
	other, err := torchwood.NewVerifierFromSigner(stranger)
	must(t, err)
	if _, _, err := torchwood.VerifyCheckpoint(raw, torchwood.SingleVerifierPolicy(other)); err == nil {
		t.Error("anybody's key verifies the checkpoint")
	}
	return checkpoint.Tree
}
