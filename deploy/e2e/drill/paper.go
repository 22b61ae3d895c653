package drill

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// What passes for permission: statements that the operator or somebody else signs, and grants that the vault's key signs.

// newKey makes a key that nobody trusts, and its file.
func newKey(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "drill")
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

// newStatement writes a statement about one call by its preview; who it is for is left to the caller.
func (w *world) newStatement(kind statement.Kind, tool, service string, preview *executorv1.PreviewCallResponse) *statement.Statement {
	w.t.Helper()
	t, now := w.tool(tool), time.Now()
	ref := statement.ToolOf(t.Ref())
	args, subject := canonical.Digest(arguments(service)), canonical.Digest(preview.GetSubject().GetEntry())
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: kind, ID: grant.NewID(), Operator: w.h.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: preview.GetEpoch(), Audience: preview.GetAudience(), Operation: grant.NewID(), Tool: &ref, Tier: contract.TierName(t.Tier),
		Arguments: arguments(service), ArgumentsDigest: canonical.FormatDigest(args[:]),
		Target: preview.GetSubject().GetLabel(), SubjectDigest: canonical.FormatDigest(subject[:]), Uses: 1,
	}
}

// statementFor writes the statement that approves an operation.
func (w *world) statementFor(op *vaultv1.Operation) *statement.Statement {
	w.t.Helper()
	service := serviceOf(op.GetArguments())
	preview, err := w.preview(op.GetTool().GetName(), service)
	w.must(err)
	st := w.newStatement(statement.KindApprove, op.GetTool().GetName(), service, preview)
	st.Epoch, st.Operation, st.Principal, st.Session = op.GetEpoch(), op.GetOperationId(), op.GetPrincipal(), op.GetSession()
	st.Channel, st.AgentReason = statement.ChannelName(op.GetChannel()), op.GetAgentReason()
	return st
}

func serviceOf(args []byte) string {
	for _, id := range []string{idle, victim, spare, scripted} {
		if bytes.Equal(args, arguments(id)) {
			return id
		}
	}
	return ""
}

func (w *world) sign(st *statement.Statement, by ssh.Signer) *callv1.HumanStatement {
	w.t.Helper()
	signed, err := statement.Sign(st, by)
	w.must(err)
	return signed
}

// signAs signs a statement's bytes under any namespace and hash.
func (w *world) signAs(raw []byte, by ssh.Signer, namespace string, hash sshsig.HashAlgorithm) *callv1.HumanStatement {
	w.t.Helper()
	signature, err := sshsig.Sign(bytes.NewReader(raw), by, hash, namespace)
	w.must(err)
	return &callv1.HumanStatement{Statement: raw, Signature: sshsig.Armor(signature)}
}

// agentStatement writes the statement of an approval for an agent's call that never was: good in every field.
func (w *world) agentStatement(tool, service string) *statement.Statement {
	w.t.Helper()
	preview, err := w.preview(tool, service)
	w.must(err)
	st := w.newStatement(statement.KindApprove, tool, service, preview)
	st.Principal, st.Session, st.Channel = "agent-0", "s-drill", "api"
	return st
}

// grantOf writes the grant that goes with a statement: good in every field.
func (w *world) grantOf(st *statement.Statement, tool, service string, statements ...*callv1.HumanStatement) *callv1.Grant {
	w.t.Helper()
	now := time.Now()
	args, subject := canonical.Digest(arguments(service)), []byte(nil)
	if st.SubjectDigest != "" {
		digest, err := canonical.ParseDigest(st.SubjectDigest)
		w.must(err)
		subject = digest
	}
	channel := callv1.Channel_CHANNEL_API
	if st.Channel == "cli" {
		channel = callv1.Channel_CHANNEL_CLI
	}
	operation := st.Operation
	if operation == "" {
		operation = grant.NewID()
	}
	policy := canonical.Digest([]byte("{}"))
	return &callv1.Grant{
		Version: grant.Version, Id: grant.NewID(), OperationId: operation, Use: 1, Principal: st.Principal, Session: st.Session,
		Channel: channel, Tool: w.tool(tool).Ref(), ArgumentsDigest: args[:], SubjectDigest: subject, Audience: st.Audience,
		PolicyDigest: policy[:], Epoch: st.Epoch, IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now),
		ExpiresAt: timestamppb.New(now.Add(grant.MaxGrantLife)), Statements: statements,
	}
}

// vaultSigns signs with the vault's real key.
func (w *world) vaultSigns(g *callv1.Grant) *callv1.SignedGrant {
	w.t.Helper()
	signed, err := grant.Sign(w.vaultKey, g)
	w.must(err)
	return signed
}

// fakeVault is the vault in hostile hands: its certificate, its key, its address, and a Redeem that agrees to everything.
type fakeVault struct {
	vaultv1.UnimplementedRedeemServiceServer
	vaultv1.UnimplementedCheckServiceServer
	epoch uint64
}

func (f *fakeVault) Redeem(context.Context, *vaultv1.RedeemRequest) (*vaultv1.RedeemResponse, error) {
	return &vaultv1.RedeemResponse{RedeemedAt: timestamppb.Now(), Epoch: f.epoch}, nil
}

func (f *fakeVault) Settle(context.Context, *vaultv1.SettleRequest) (*vaultv1.SettleResponse, error) {
	return &vaultv1.SettleResponse{}, nil
}

// CheckGrant says that whatever was redeemed still stands.
func (f *fakeVault) CheckGrant(context.Context, *vaultv1.CheckGrantRequest) (*vaultv1.CheckGrantResponse, error) {
	return &vaultv1.CheckGrantResponse{}, nil
}

// takeVault puts the hostile vault in the place of the real one, for the rest of the drill.
func (w *world) takeVault() {
	w.t.Helper()
	if w.fake != nil {
		return
	}
	fake := &fakeVault{epoch: 1}
	w.serveAs(harness.Vault, func(server grpc.ServiceRegistrar) {
		vaultv1.RegisterRedeemServiceServer(server, fake)
		vaultv1.RegisterCheckServiceServer(server, fake)
	})
	w.fake = fake
	w.settle()
}

// serveAs ends a process and serves in its place, with its certificate and key at its address, until stop or the drill's end.
func (w *world) serveAs(role string, register func(grpc.ServiceRegistrar)) (stop func()) {
	w.t.Helper()
	if p := w.h.Process(role); p.Running() {
		p.Kill()
	}
	server := rpc.NewServer(rpc.ServerConfig{Identity: w.source(role), Logger: slog.New(slog.DiscardHandler)})
	register(server)
	listener, err := rpc.Listen(w.h.Address(role), false)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			w.t.Errorf("the hostile %s: %v", role, err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}
