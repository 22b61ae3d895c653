package drill

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
)

// logLines are attacks on what services write: where their passwords end up, and other strangers' words, and how much it takes.
func logLines() []Line {
	return []Line{
		{"gateway-log-secrets", map[string]string{harness.Executor: "tokenise"}, secretsInLogs},
		{"service-fills-disk", map[string]string{harness.Executor: "log"}, serviceFills},
		{"vault-logs-by-permit", map[string]string{harness.Executor: "one-call"}, logsByPermit},
	}
}

// logged is a password that the victim writes into its log.
const logged = "Tr0ub4dor-and-3"

// secretsInLogs reads the victim's log with the vault's own grants, as a gateway may, and looks for its password. Its effects are
// answers that hold it.
func secretsInLogs(w *world) (trials, effects int) {
	s := w.open()
	for range 20 {
		var log string
		harness.Eventually(w.t, "the log is read", func() error { // a busy vault looks through nothing, and says so
			allowed, err := w.authorise(s.handle, "service_logs", arguments(victim))
			w.must(err)
			answer, err := w.execute(w.gatewayExecutor, "service_logs", victim, rpc.MetadataGrant, marshal(allowed.GetGrant()))
			if err == nil {
				log = answer.(*executorv1.ServiceLogsResponse).GetLog()
			}
			return err
		})
		trials++
		if strings.Contains(log, logged) {
			effects++
		} else if !strings.Contains(log, "[[SECRET:") {
			w.t.Fatalf("the log holds no password, so that nothing is proved: %q", log)
		}
		if w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// logsByPermit reads logs with permits that name the tool, from a vault that errs or was taken over: no call of them would be seen by
// anybody, nor its text by the vault that has to look through it. Its effects are answers.
func logsByPermit(w *world) (trials, effects int) {
	s := w.open()
	signed := &callv1.SignedPermit{}
	w.must(proto.Unmarshal([]byte(s.permits["executor"]), signed))
	for _, tools := range [][]string{nil, {"service_logs"}} {
		permit := &callv1.Permit{}
		w.must(proto.Unmarshal(signed.GetPayload(), permit))
		now := time.Now()
		permit.Id, permit.IssuedAt, permit.NotBefore, permit.ExpiresAt = grant.NewID(), timestamppb.New(now), timestamppb.New(now), timestamppb.New(now.Add(time.Minute))
		permit.Tools = append(permit.Tools, tools...)
		slices.Sort(permit.Tools)
		wide, err := grant.SignPermit(w.vaultKey, permit)
		w.must(err)
		for range 10 {
			trials++
			effects += disclosed(w.execute(w.gatewayExecutor, "service_logs", victim, rpc.MetadataPermit, marshal(wide)))
			if w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}
