package golden

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"

	"durward.internal/deploy/e2e/harness"
)

// Services of codesCatalog beside those of DemoCatalog.
const (
	failing = "demo-failing" // ends at once with an error
	large   = "demo-large"   // does not fit beside demo-chat
	gated   = "demo-gated"   // needs a stored credential
	crowded = "crowded"      // the mode that holds both
)

func codesCatalog(h *harness.Host) string {
	return harness.DemoCatalog(h) + fmt.Sprintf(`  - id: %s
    name: Failing
    driver: process
    argv: [durward-demo, -no-such-flag]
    port: %d
    health: {path: /health}
  - id: %s
    name: Large
    driver: process
    argv: [durward-demo, -port, "%d"]
    port: %d
    health: {path: /health}
    vram_mib: 20000
    gpus: [0]
  - id: %s
    name: Gated
    driver: process
    argv: [durward-demo, -port, "%d"]
    port: %d
    health: {path: /health}
    credentials: [hf-token]
modes:
  - {id: quiet, services: [%s]}
  - {id: %s, services: [%s, %s]}
`, failing, h.Port(3), large, h.Port(4), h.Port(4), gated, h.Port(5), h.Port(5), failing, crowded, harness.DemoService, large)
}

// tellCodes tells how an agent and an operator meet the codes with which calls end that neither of them is to blame for.
func tellCodes(t *testing.T, s *set) {
	w := newWorld(t, s, harness.Options{Catalog: codesCatalog})
	defer w.done()
	w.WriteFile("config/vault.yaml", w.ReadFile("config/vault.yaml")+"\ncredentials: {key: passphrase}\n")
	w.StartAll()
	token := w.AddClient("agent", "--tier", "DESTRUCTIVE")
	session := w.ConnectRaw(token)
	// asks has the agent ask for a change, which then waits for a person.
	asks := func(f *transcript, tool, arguments string) string {
		t.Helper()
		return envelopeOf(t, f.request(tool+" "+arguments, session.Call(tool, arguments))).OperationID
	}
	operation := func(id string) string { return fmt.Sprintf(`{"operation_id":%q}`, id) }
	waits := func(f *transcript, id string) {
		t.Helper()
		f.request("wait_operation", session.Call("wait_operation", operation(id)))
	}
	service := func(id string) string { return fmt.Sprintf(`{"service_id":%q}`, id) }

	f := w.file("codes/failed.txt")
	f.says("FAILED: the service's program ends at once.")
	id := asks(f, "start_service", service(failing))
	w.Approve(id)
	waits(f, id)
	w.recorded(id, auditv1.Kind_KIND_OUTCOME)
	f.story(id)
	f.durward("start", failing, "--yes")

	f = w.file("codes/sealed.txt")
	f.says("SEALED: the service needs a stored credential, and nobody has unsealed those since the vault started.")
	id = asks(f, "start_service", service(gated))
	w.Approve(id)
	waits(f, id)
	f.durward("start", gated, "--yes")
	f.durward("credential", "list")

	f = w.file("codes/conflict.txt")
	f.says("CONFLICT: a program that is not Durward's has the service's port.")
	stranger, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(w.Port(0))))
	must(t, err)
	id = asks(f, "start_service", service(harness.DemoService))
	w.Approve(id)
	waits(f, id)
	f.durward("start", harness.DemoService, "--yes")
	must(t, stranger.Close())

	f = w.file("codes/plan.txt")
	f.says("PLAN_CHANGED: what was approved is not what would be done now.")
	f.request("simulate_mode", session.Call("simulate_mode", `{"mode_id":"quiet"}`))
	f.says("No person is asked about a plan that is old already.")
	f.request(`switch_mode {"mode_id":"quiet"} and the digest of no plan`, session.Call("switch_mode", fmt.Sprintf(`{"mode_id":"quiet","plan_digest":%q}`, zeros)))
	var plan struct {
		Digest string `json:"plan_digest"`
	}
	w.DurwardJSON(&plan, "simulate", "quiet")
	quiet := fmt.Sprintf(`{"mode_id":"quiet","plan_digest":%q}`, plan.Digest)
	id = asks(f, "switch_mode", quiet)
	f.says("demo-chat is started before a person looks.")
	w.Durward("start", harness.DemoService, "--yes")
	f.durward("approve", w.number(id), "--yes")
	w.Deny(id, "it is old")
	w.Durward("stop", harness.DemoService, "--yes")
	f.says("demo-chat is started after a person approved.")
	id = asks(f, "switch_mode", quiet)
	w.number(id)
	w.Approve(id)
	w.Durward("start", harness.DemoService, "--yes")
	waits(f, id)
	f.says("DOES_NOT_FIT: a person sees it before the approval, and what would make room; the agent is told what to call next.")
	id = asks(f, "start_service", service(large))
	w.number(id)
	f.durward("approvals")
	w.Approve(id)
	waits(f, id)
	f.request("simulate_mode", session.Call("simulate_mode", fmt.Sprintf(`{"start":[%q]}`, large)))
	w.Durward("stop", harness.DemoService, "--yes")
	f.says("DOES_NOT_FIT: the mode's services need more memory than there is.")
	f.durward("switch", crowded, "--yes")

	f = w.file("codes/halted.txt")
	f.says("HALTED: an operator halted everything after the agent asked, and after a person approved.")
	id = asks(f, "stop_service", service(failing))
	approved := asks(f, "stop_service", service(harness.DemoService))
	number := w.number(id)
	w.Approve(approved)
	w.Durward("panic", "--reason", "a test")
	waits(f, approved)
	w.Durward("resume", "--yes")
	f.durward("approve", number, "--yes")
	waits(f, id)
	waits(f, approved)

	f = w.file("codes/expired.txt")
	f.says("EXPIRED: what a person let a session do ends before the session comes for it.")
	cursor := w.agent("cursor")
	id = cursor.call(f, "pending_approval", "stop_service", service(harness.DemoService)).OperationID
	w.Durward("approve", w.number(id), "--scope", "--uses", "2", "--for", "10m", "--yes")
	w.Durward("standing", "revoke", "--all")
	cursor.call(f, "error", "wait_operation", operation(id))

	f = w.file("codes/unknown-outcome.txt")
	f.says("UNKNOWN_OUTCOME: the executor is killed while the service starts.")
	id = asks(f, "start_service", service(harness.SlowService))
	w.Approve(id)
	f.request("wait_operation, which the service's start takes longer than", session.Call("wait_operation", operation(id)))
	harness.Eventually(t, "the service's program runs", func() error {
		if n := len(w.ServicePIDs()); n != 1 {
			return fmt.Errorf("%d programs", n)
		}
		return nil
	})
	w.Process(harness.Executor).Kill()
	w.StartProcess(harness.Executor)
	w.recorded(id, auditv1.Kind_KIND_RECOVERED)
	f.story(id)
	f.requestUntil("wait_operation, once the executor runs again", session.Call("wait_operation", operation(id)),
		func(a harness.RawAnswer) bool { return codes.MatchString(a.Body) && !a.NotNow() })

	f = w.file("codes/timeout.txt")
	f.says("TIMEOUT: the vault does not answer.")
	w.away = true
	w.Process(harness.Vault).Hang()
	f.request("stop_service", session.Call("stop_service", service(harness.DemoService)))
	f.durward("approvals")
	w.Process(harness.Vault).Continue()

	tellFaultyExecutor(w, token)
}

// zeros is the digest of no plan.
const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

// tellFaultyExecutor puts a program in the executor's place that ends each call with an error, with each code in turn: what the gateway and
// durward make of every code, whoever it comes from.
func tellFaultyExecutor(w *world, token string) {
	w.t.Helper()
	w.known.IsA(zeros, "ZERO_DIGEST")
	w.Process(harness.Executor).Stop()
	listener, err := net.Listen("tcp", w.Address(harness.Executor))
	if err != nil {
		w.t.Fatal(err)
	}
	var answer error
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert,
			Certificates: []tls.Certificate{harness.Issue(w.t, w.CA(), w.Identity(harness.Executor), 0)},
		})),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return answer }),
	)
	go func() { _ = server.Serve(listener) }() // it ends with the test
	w.t.Cleanup(server.Stop)
	ask := harness.StatelessCall(token, "gpu_status", "{}")
	harness.Eventually(w.t, "the gateway reaches the faulty executor", func() error {
		answer = fault.New(callv1.Code_CODE_FAILED, "it is faulty")
		if a := mustRaw(w, ask); !codes.MatchString(a.Body) || a.NotNow() {
			return fmt.Errorf("%s", a.Body)
		}
		return nil
	})
	f := w.file("codes/every.txt")
	f.says("An executor that ends every call with an error: what an agent and an operator make of each code.")
	for _, code := range everyCode() {
		f.says("%s", code)
		answer = fault.New(code, "the executor's own sentence").GRPCStatus("r-" + strings.Repeat("a", 26)).Err()
		f.request("gpu_status {}", ask)
		f.durward("services")
	}
	f.says("an error without a code, as a program makes that is not Durward's")
	answer = errors.New("panic: /srv/durward/executor.go:7")
	f.request("gpu_status {}", ask)
	f.durward("services")
}

// codes finds the code of an error, as an agent meets it.
var codes = regexp.MustCompile(`"code": ?"([A-Z_]+)"`)

// everyCode returns each code that a call can end with, in the contract's order.
func everyCode() []callv1.Code {
	var all []callv1.Code
	for n := range callv1.Code_name {
		if code := callv1.Code(n); code != callv1.Code_CODE_UNSPECIFIED {
			all = append(all, code)
		}
	}
	slices.Sort(all)
	return all
}

// notMet are the codes that no agent meets as long as every program is as it should be, and why.
var notMet = map[callv1.Code]string{
	callv1.Code_CODE_INTERNAL:       "it is a mistake in Durward",
	callv1.Code_CODE_ALREADY_SPENT:  "the gateway spends a grant once",
	callv1.Code_CODE_PROOF_REQUIRED: "the bridge proves each call, and a client without its key gets no session",
}

// everyCodeIsMet looks for each code among the transcripts of programs that are as they should be.
func everyCodeIsMet(t *testing.T, s *set) {
	t.Helper()
	met := map[string]bool{}
	for name, text := range s.got {
		if name != "codes/every.txt" {
			for _, m := range codes.FindAllStringSubmatch(text, -1) {
				met[m[1]] = true
			}
		}
	}
	for _, code := range everyCode() {
		if why, excepted := notMet[code]; excepted == met[fault.CodeName(code)] {
			t.Errorf("%s: in a transcript: %t; excepted: %t (%s)", code, met[fault.CodeName(code)], excepted, why)
		}
	}
}
