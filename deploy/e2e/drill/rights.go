package drill

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// ownApproval decides in the human's place. Its effects are decisions that the vault's store holds, and what they start.
func ownApproval(w *world) (trials, effects int) {
	return w.decide(w.gatewayVault, w.gatewayExecutor, true)
}

// decide tries to approve an agent's operation over a connection, with every statement but the operator's own. Denials count
// where denial is not the caller's right.
func (w *world) decide(vault, executor *grpc.ClientConn, mayNotDeny bool) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	id := w.ask(s, "start_service", idle)
	op := w.operation(id)
	good := w.statementFor(op)
	approvals := vaultv1.NewApprovalServiceClient(vault)
	decided := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND state != 1`, id) +
			w.query(harness.Vault, `SELECT count(*) FROM operations WHERE principal = ? AND state != 5`, statement.CommandPrincipal("mallory")) +
			w.effects(m)
	}
	ctx, cancel := w.ctx(2 * time.Minute)
	defer cancel()
	for _, h := range w.badStatements(good) {
		trials += 3
		_, _ = approvals.ApproveOperation(ctx, &vaultv1.ApproveOperationRequest{OperationId: id, Statement: h})
		if out, err := approvals.ClaimOperation(ctx, &vaultv1.ClaimOperationRequest{OperationId: id}); err == nil {
			_, _ = w.execute(executor, "start_service", idle, rpc.MetadataGrant, marshal(out.GetGrant()))
		}
		if out, err := approvals.GrantCommand(ctx, &vaultv1.GrantCommandRequest{Statement: h}); err == nil {
			_, _ = w.execute(executor, "start_service", idle, rpc.MetadataGrant, marshal(out.GetGrant()))
		}
		if effects = decided(); w.caught(effects) {
			return trials, effects
		}
	}
	if mayNotDeny {
		trials++
		_, _ = approvals.DenyOperation(ctx, &vaultv1.DenyOperationRequest{OperationId: id, Reason: "mine"})
	}
	return trials, decided()
}

// everyRPC calls every method that is not the gateway's, of every process, with empty and with plausible requests. Its
// effects are answers that disclose something, and every change of the vault's, the executor's and the log's state, and of the files that humans rule by.
func everyRPC(w *world) (trials, effects int) {
	return w.everyRPC(optionsv1.Role_ROLE_GATEWAY, w.gatewayVault, w.gatewayExecutor, w.gatewayAudit)
}

// everyRPC is that for any role, on its own connections and with permits that it has.
func (w *world) everyRPC(role optionsv1.Role, vault, executor, audit *grpc.ClientConn, permits ...string) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	id := w.ask(s, "start_service", idle)
	signed := w.sign(w.statementFor(w.operation(id)), w.other)
	granted := w.readGrant(s)
	state := func() int {
		return w.query(harness.Vault, `SELECT epoch + halted FROM control`) + w.query(harness.Executor, `SELECT epoch + halted FROM control`) +
			w.query(harness.Vault, `SELECT count(*) FROM operations WHERE state != 1`) + w.query(harness.Vault, `SELECT count(*) FROM statements`) +
			w.query(harness.Vault, `SELECT count(*) FROM spent`)
	}
	before, answers, rules := state(), 0, w.rules()
	headers := [][]string{nil, {"durward-caller", w.h.OperatorIdentity().String()}}
	for _, permit := range append(permits, s.permits["executor"]) {
		headers = append(headers, []string{rpc.MetadataPermit, permit})
	}
	for _, process := range []struct {
		conn *grpc.ClientConn
		own  protoreflect.FullName
	}{{vault, "durward.vault.v1"}, {executor, "durward.executor.v1"}, {audit, "durward.audit.v1"}} {
		for _, method := range foreignMethods(role, process.own) {
			for _, request := range w.requests(method.Input(), id, signed, granted) {
				for _, md := range headers {
					trials++
					answers += w.probe(process.conn, method, request, md)
				}
			}
			if w.caught(answers) {
				break // what answers at last takes its time
			}
		}
		// What is not in the contract at all.
		for _, unknown := range []string{
			"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
			"/durward.vault.v1.ApprovalService/ApproveAll", "/durward.executor.v1.ToolService/RunCommand", "/", "//", "/durward.executor.v1.ToolService/",
		} {
			trials++
			ctx, cancel := w.ctx(2 * time.Second)
			response := &vaultv1.GetStatusResponse{}
			if err := process.conn.Invoke(ctx, unknown, &vaultv1.GetStatusRequest{}, response); err == nil {
				answers++
			}
			cancel()
		}
	}
	effects = answers + max(state()-before, 0) + w.effects(m)
	for file, digest := range w.rules() {
		if rules[file] != digest {
			effects++
		}
	}
	w.resume()
	return trials, effects
}

// rules are the digests of the files that humans rule by.
func (w *world) rules() map[string][sha256.Size]byte {
	w.t.Helper()
	digests := map[string][sha256.Size]byte{}
	for _, folder := range []string{"config", "trust"} {
		w.must(filepath.WalkDir(w.h.Path(folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			digests[path] = sha256.Sum256(raw)
			return err
		}))
	}
	return digests
}

// foreignMethods are the methods that the contract does not give to a role at the process whose own package that is: those of the other
// processes among them.
func foreignMethods(role optionsv1.Role, own protoreflect.FullName) (out []protoreflect.MethodDescriptor) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				if m := methods.Get(j); strings.HasPrefix(string(f.Package()), "durward.") && (f.Package() != own || !mayCall(role, m)) {
					out = append(out, m)
				}
			}
		}
		return true
	})
	return out
}

// probe calls a method, as a stream where it is one, and returns 1 if anything came back.
func (w *world) probe(conn *grpc.ClientConn, method protoreflect.MethodDescriptor, request proto.Message, md []string) int {
	ctx, cancel := w.ctx(2 * time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, md...)
	full := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	response := newMessage(method.Output())
	if !method.IsStreamingServer() {
		if err := conn.Invoke(ctx, full, request, response); err != nil {
			return 0
		}
		return 1
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, full)
	if err != nil {
		return 0
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	_ = stream.CloseSend() // what comes back says enough
	if err := stream.RecvMsg(response); err != nil {
		return 0
	}
	return 1
}

// resume ends the halts that an attack caused, and waits until everything works.
func (w *world) resume() {
	w.t.Helper()
	if w.resumeOnly() {
		w.settle()
	}
}

// resumeOnly ends the halts that an attack caused, brings vault and executor to one epoch, and carries nothing out. It says whether
// there was one.
func (w *world) resumeOnly() bool {
	w.t.Helper()
	epoch := 1 + max(w.query(harness.Vault, `SELECT epoch FROM control`), w.query(harness.Executor, `SELECT epoch FROM control`))
	if w.query(harness.Vault, `SELECT halted FROM control`)+w.query(harness.Executor, `SELECT halted FROM control`) == 0 {
		return false
	}
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	vault, executor := vaultv1.NewControlServiceClient(w.operatorVault), executorv1.NewControlServiceClient(w.operatorExecutor)
	_, err := vault.Halt(ctx, &vaultv1.HaltRequest{Reason: "drill"})
	w.must(err)
	_, err = executor.Halt(ctx, &executorv1.HaltRequest{Reason: "drill"})
	w.must(err)
	epoch += 2
	_, err = vault.Resume(ctx, &vaultv1.ResumeRequest{Statement: w.resumption(harness.Vault, uint64(epoch))})
	w.must(err)
	_, err = executor.Resume(ctx, &executorv1.ResumeRequest{Statement: w.resumption(harness.Executor, uint64(epoch))})
	w.must(err)
	return true
}

func (w *world) resumption(role string, epoch uint64) *callv1.HumanStatement {
	now := time.Now()
	return w.sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindResume, ID: grant.NewID(), Operator: w.h.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: epoch, Audience: w.h.Identity(role).String(),
	}, w.signer)
}

// forgedRecords writes what only others may write into the history: their kinds of records, and a human's consent in its own.
// Its effects are such entries.
func forgedRecords(w *world) (trials, effects int) {
	own := []auditv1.Kind{auditv1.Kind_KIND_STARTED, auditv1.Kind_KIND_STOPPED, auditv1.Kind_KIND_REFUSED}
	return w.forgeRecords(w.gatewayAudit, harness.Gateway, func(kind auditv1.Kind, claim int) bool { return claim == 0 && slices.Contains(own, kind) })
}

// forgeRecords writes records of every kind as a role, each with every claim of a human's consent and with none, but for those that are its own.
func (w *world) forgeRecords(audit *grpc.ClientConn, role string, own func(kind auditv1.Kind, claim int) bool) (trials, effects int) {
	const mark = "r-forged"
	forged := func() int {
		// Reads are in blocks, by writer, without their request; a gateway writes none.
		return w.query(harness.Audit, `SELECT (SELECT count(*) FROM entries JOIN writers ON writers.id = entries.writer WHERE writers.role = ?1 AND request_id = ?2)
			+ (SELECT count(*) FROM spans JOIN writers ON writers.id = spans.writer WHERE writers.role = ?1 AND ?1 = 'gateway')`, role, mark)
	}
	signed := w.sign(w.agentStatement("start_service", idle), w.signer)
	unsigned := proto.CloneOf(signed)
	unsigned.Signature = []byte("-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n")
	claims := []*auditv1.Body{{}, {Confirmed: true}, {Dangerous: true}, {Statement: signed}, {Statement: unsigned}}
	before := forged()
	log := auditv1.NewLogServiceClient(audit)
	for value := range auditv1.Kind_name {
		kind := auditv1.Kind(value)
		for i, claim := range claims {
			if own(kind, i) {
				continue
			}
			trials++
			body := proto.CloneOf(claim)
			body.Principal, body.Action = statement.CommandPrincipal(w.h.Operator), "approve"
			ctx, cancel := w.ctx(2 * time.Second)
			head, err := log.GetHead(ctx, &auditv1.GetHeadRequest{})
			w.must(err)
			_, _ = log.Append(ctx, &auditv1.AppendRequest{Records: []*auditv1.Record{{
				Sequence: head.GetLastSequence() + 1, Kind: kind, Time: timestamppb.Now(), RequestId: mark, OperationId: grant.NewID(),
				Tool: "start_service", Status: auditv1.Status_STATUS_OK, Body: body,
			}}})
			cancel()
			if effects = forged() - before; w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, forged() - before
}
