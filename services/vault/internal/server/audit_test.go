package server

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
)

// memoryLog is an audit log in memory, with real leaves, proofs and checkpoints. While it is hung it answers nobody.
type memoryLog struct {
	auditv1.UnimplementedLogServiceServer
	kit *platformtest.Kit

	mu      sync.Mutex
	hung    bool
	hashes  []tlog.Hash
	size    int64
	records []*auditv1.Record
}

func (m *memoryLog) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = m.hashes[index]
	}
	return out, nil
}

func (m *memoryLog) wait(ctx context.Context) error {
	m.mu.Lock()
	hung := m.hung
	m.mu.Unlock()
	if hung {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func bytesOf(hashes []tlog.Hash) [][]byte {
	out := make([][]byte, len(hashes))
	for i := range hashes {
		out[i] = hashes[i][:]
	}
	return out
}

// head signs the tree as it is, with the proof that it extends the one of size known.
func (m *memoryLog) head(known uint64) (checkpoint []byte, consistency [][]byte, err error) {
	root, err := tlog.TreeHash(m.size, m)
	if err != nil {
		return nil, nil, err
	}
	origin := logproof.Origin(m.kit.ID(optionsv1.Role_ROLE_AUDIT, "main").String())
	checkpoint, err = logproof.SignCheckpoint(logproof.Checkpoint{Origin: origin, Size: uint64(m.size), Root: root}, m.kit.LogSigner)
	if err != nil || known == 0 || known >= uint64(m.size) {
		return checkpoint, nil, err
	}
	proof, err := tlog.ProveTree(m.size, int64(known), m)
	return checkpoint, bytesOf(proof), err
}

func (m *memoryLog) GetHead(ctx context.Context, req *auditv1.GetHeadRequest) (*auditv1.GetHeadResponse, error) {
	if err := m.wait(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	checkpoint, consistency, err := m.head(req.GetKnownSize())
	return &auditv1.GetHeadResponse{Checkpoint: checkpoint, Consistency: consistency, LastSequence: uint64(len(m.records))}, err
}

func (m *memoryLog) Append(ctx context.Context, req *auditv1.AppendRequest) (*auditv1.AppendResponse, error) {
	if err := m.wait(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &auditv1.AppendResponse{}
	for _, r := range req.GetRecords() {
		if r.GetSequence() != uint64(len(m.records))+1 {
			return nil, errors.New("out of sequence")
		}
		salt := make([]byte, logproof.SaltSize)
		_, _ = rand.Read(salt)
		entry := &auditv1.Entry{Index: uint64(m.size), Writer: caller(ctx).String(), Record: r, LoggedAt: timestamppb.Now(), Salt: salt}
		if err := logproof.Seal(entry); err != nil {
			return nil, err
		}
		stored, err := tlog.StoredHashesForRecordHash(m.size, tlog.Hash(entry.GetLeafHash()), m)
		if err != nil {
			return nil, err
		}
		m.hashes = append(m.hashes, stored...)
		m.size++
		m.records = append(m.records, r)
		resp.Placements = append(resp.Placements, &auditv1.Placement{LoggedAt: entry.GetLoggedAt(), Salt: salt})
		resp.Receipts = append(resp.Receipts, &callv1.Receipt{Index: entry.GetIndex(), LeafHash: entry.GetLeafHash()})
	}
	var err error
	if resp.Checkpoint, resp.Consistency, err = m.head(req.GetKnownSize()); err != nil {
		return nil, err
	}
	for _, receipt := range resp.GetReceipts() {
		proof, err := tlog.ProveRecord(m.size, int64(receipt.GetIndex()), m)
		if err != nil {
			return nil, err
		}
		receipt.Checkpoint, receipt.Inclusion = resp.GetCheckpoint(), bytesOf(proof)
	}
	return resp, nil
}

func (m *memoryLog) hang(hung bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hung = hung
}

func (m *memoryLog) kinds() map[auditv1.Kind]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[auditv1.Kind]int{}
	for _, r := range m.records {
		out[r.GetKind()]++
	}
	return out
}

// recorded gives a vault the platform's recorder, connected to an audit at addr.
func (v *vault) recorded(addr string) {
	v.t.Helper()
	self := v.Identity(optionsv1.Role_ROLE_VAULT, "main")
	audit := v.ID(optionsv1.Role_ROLE_AUDIT, "main")
	waiting, err := spool.Open(v.t.Context(), filepath.Join(v.Dir, "recorder"))
	v.must(err)
	records, err := recorder.Open(v.t.Context(), v.Dial(v.t, self.ID(), addr, audit), audit.String(), v.Trust, recorder.Config{
		Writer: self.ID().String(), Store: waiting, Logger: platformtest.Logger(),
	})
	v.must(err)
	v.restart(func(c *Config, q *operation.Config) {
		c.Audit, c.Journal = records, journal.New(records, v.clock.Now, platformtest.Logger())
		q.Journal = c.Journal
	})
	v.t.Cleanup(func() {
		v.stop()
		v.must(records.Close(context.Background()))
	})
}

func TestWithARealLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		log := &memoryLog{kit: v.Kit}
		addr := v.Serve(t, optionsv1.Role_ROLE_AUDIT, "main", func(r grpc.ServiceRegistrar) { auditv1.RegisterLogServiceServer(r, log) })
		v.recorded(addr)
		synctest.Wait()
		if !v.server.Audit.Reachable() {
			t.Fatal("audit is not reached")
		}
		_, id, g := v.granted(bearer, "a")
		v.must(v.redeem(g))
		_, err := v.sink().Settle(t.Context(), &vaultv1.SettleRequest{OperationId: id, Use: 1, Ok: true})
		v.must(err)
		kinds := log.kinds()
		for _, kind := range []auditv1.Kind{
			auditv1.Kind_KIND_SESSION_OPENED, auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED,
		} {
			if kinds[kind] != 1 {
				t.Errorf("%d of %s in the log when the sink has its answer, want 1", kinds[kind], kind)
			}
		}

		opened := v.open(bearer)
		log.hang(true)
		started := time.Now()
		_, err = v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "b"))
		wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
		if took := time.Since(started); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		started = time.Now()
		_, err = v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "audit hangs"})
		v.must(err)
		if took := time.Since(started); took > time.Second {
			t.Errorf("the halt took %s", took)
		}
		v.open(bearer) // the spool has room
		log.hang(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if kinds := log.kinds(); kinds[auditv1.Kind_KIND_HALTED] == 0 || kinds[auditv1.Kind_KIND_SESSION_OPENED] < 3 {
			t.Errorf("what was spooled is not in the log 10 s after audit answers again: %v", kinds)
		}
	})
}

func TestWithoutAnyAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		v.recorded("memory:none")
		opened := v.open(bearer)
		started := time.Now()
		_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "b"))
		wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
		if took := time.Since(started); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		if n := v.server.Queue.PendingCount(); n != 0 {
			t.Errorf("%d operations wait", n)
		}
	})
}
