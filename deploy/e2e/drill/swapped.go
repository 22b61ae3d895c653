package drill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/grant"
)

// Two principals: whatever the one was given to name what is its own with, the other uses.

// swappedSessions uses another's session id in every way that a session id can be used, and another's instance of the
// stateless era. Its effects are requests that were served, operations in the other's session, and the other's session gone.
func swappedSessions(w *world) (trials, effects int) {
	owner, thief := w.agent(), w.agent()
	session := w.h.ConnectRaw(owner.token)
	instance := grant.NewID()
	asOwner := w.instanceCall(owner.token, instance, "stop_service", spare)
	if operationIn(asOwner) == "" {
		w.t.Fatalf("the owner cannot ask: %d %s", asOwner.HTTPStatus, asOwner.Body)
	}
	unknown := strings.Repeat("A", len(session.ID))
	owned := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE principal = ?`, owner.principal)
	}
	before := owned()
	own := w.h.ConnectRaw(thief.token)
	for _, id := range []string{session.ID, strings.ToLower(session.ID), session.ID + ", " + own.ID, own.ID + ", " + session.ID} {
		for i, r := range surfaces(thief.token, id)[1:4] {
			trials++
			if a := w.raw(r); id == session.ID && face(a) != face(w.raw(surfaces(thief.token, unknown)[1+i])) || a.HTTPStatus < http.StatusBadRequest {
				w.t.Logf("%s in another's session: %d %s", r.Method, a.HTTPStatus, a.Body)
				effects++
			}
			if w.caught(effects) {
				return trials, effects
			}
		}
	}
	// The instance is a name of its program among the owner's programs: the thief's of the same name is another.
	trials++
	asThief := w.instanceCall(thief.token, instance, "start_service", idle)
	sessionOf := func(operation string) int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND session IN (SELECT session FROM operations WHERE operation_id = ?)`,
			operationIn(asThief), operation)
	}
	effects += sessionOf(operationIn(asOwner))
	if a := w.raw(session.Request([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))); a.HTTPStatus != http.StatusOK {
		w.t.Logf("the owner's session is gone: %d", a.HTTPStatus)
		effects++
	}
	return trials, effects + owned() - before
}

// instanceCall is a stateless call by a program that names its instance.
func (w *world) instanceCall(token, instance, tool, service string) harness.RawAnswer {
	r := harness.StatelessCall(token, tool, string(arguments(service)))
	r.Body = []byte(strings.Replace(string(r.Body), `"_meta":{`, `"_meta":{"durward/instance":"`+instance+`",`, 1))
	return w.raw(r)
}

// holdTime is how long the drill's gateway holds a call that waits for a human.
const holdTime = time.Second

// swappedRequests cancels another's request by its id, and asks for another's progress by its token, in both eras. Its effects
// are calls that ended before their time, and notifications that somebody got who did not ask for them.
func swappedRequests(w *world) (trials, effects int) {
	owner, thief := w.agent(), w.agent()
	session, own := w.h.ConnectRaw(owner.token), w.h.ConnectRaw(thief.token)
	const id, progress = `"request-of-the-owner"`, `"progress-of-the-owner"`
	call := func(service string) []byte {
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"start_service","arguments":%s,"_meta":{"progressToken":%s}}}`,
			id, arguments(service), progress)
	}
	stateless := func(a agent, service string) harness.RawRequest {
		r := harness.StatelessCall(a.token, "start_service", string(arguments(service)))
		r.Body = []byte(strings.NewReplacer(`"id":7`, `"id":`+id, `"_meta":{`, `"_meta":{"progressToken":`+progress+`,`).Replace(string(r.Body)))
		return r
	}
	cancel := []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"drill"}}`)
	inOthers := harness.RawRequest{Token: thief.token, Body: cancel, Header: session.Request(nil).Header}
	inNone := harness.RawRequest{Token: thief.token, Body: cancel, Header: map[string]string{
		"Mcp-Protocol-Version": harness.StatelessRevision, "Mcp-Method": "notifications/cancelled",
	}}
	for _, held := range []harness.RawRequest{session.Request(call(idle)), stateless(owner, spare)} {
		var mine harness.RawAnswer
		var took time.Duration
		var waiting sync.WaitGroup
		before := w.operations()
		waiting.Go(func() {
			began := time.Now()
			mine = w.raw(held)
			took = time.Since(began)
		})
		w.until("the owner's call waits", func() bool { return w.operations() != before })
		for _, r := range []harness.RawRequest{own.Request(cancel), inOthers, inNone} {
			trials++
			w.raw(r)
		}
		// The thief's own call, under the same id and token, is the thief's.
		var theirs [2]harness.RawAnswer
		for i, r := range []harness.RawRequest{own.Request(call(victim)), stateless(thief, victim)} {
			trials++
			waiting.Go(func() { theirs[i] = w.raw(r) })
		}
		waiting.Wait()
		for _, a := range theirs {
			if operation := operationIn(mine); operation != "" && strings.Contains(a.Body, operation) {
				w.t.Logf("the owner's operation reached the thief: %s", a.Body)
				effects++
			}
		}
		if status(mine) != "pending_approval" || took < holdTime*9/10 {
			w.t.Logf("the owner's call ended after %s: %d %s", took, mine.HTTPStatus, mine.Body)
			effects++
		}
		if w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// idsInFlight has a session ask under the id of a request that is under way. Its effects are answers other than the refusal, and
// refusals of which the log has no record.
func idsInFlight(w *world) (trials, effects int) {
	for _, tool := range []string{"gpu_status", "service_info", "start_service", "stop_service"} {
		session := w.h.ConnectRaw(w.agent().token) // of each client's refusals the first has a record of its own
		before := w.operations()
		var held sync.WaitGroup
		held.Go(func() { w.raw(session.Call("start_service", string(arguments(idle)))) })
		w.until("the first call waits", func() bool { return w.operations() != before })
		trials++
		a := w.raw(session.Call(tool, string(arguments(idle))))
		held.Wait()
		if status(a) != "error" || !strings.Contains(a.Body, "id is under way") || harness.Poll(func() error {
			if len(w.h.Records(&auditv1.SearchRecordsRequest{RequestId: requestID(a), Kinds: []auditv1.Kind{auditv1.Kind_KIND_REFUSED}})) == 0 {
				return errors.New("the log has no record of it")
			}
			return nil
		}) != nil {
			w.t.Logf("a second %s under the id of a call: %d %s", tool, a.HTTPStatus, a.Body)
			effects++
		}
		if w.denyAll(); w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// swappedOperations uses another's operation id wherever an operation can be named: as an argument, as a task, in the URI of a
// resource, in a subscription. Its effects are answers that differ from those for an operation that nobody has, notifications
// about it, and decisions on it.
func swappedOperations(w *world) (trials, effects int) {
	owner, thief := w.agent(), w.agent()
	asked := w.raw(harness.StatelessCall(owner.token, "start_service", string(arguments(idle))))
	id, nobodys := operationIn(asked), grant.NewID()
	if id == "" {
		w.t.Fatalf("the owner cannot ask: %d %s", asked.HTTPStatus, asked.Body)
	}
	own := w.h.ConnectRaw(thief.token)
	uses := func(id string) []harness.RawRequest {
		uri := "durward://operations/" + id
		quoted := func(format string) []byte { return fmt.Appendf(nil, format, id) }
		tasks := func(method, params string) harness.RawRequest {
			r := harness.Stateless(thief.token, method, id, params)
			r.Body = []byte(strings.Replace(string(r.Body), `clientCapabilities":{}`, `clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, 1))
			return r
		}
		return []harness.RawRequest{
			own.Call("wait_operation", `{"operation_id":"`+id+`"}`),
			harness.StatelessCall(thief.token, "wait_operation", `{"operation_id":"`+id+`"}`),
			own.Request(quoted(`{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"durward://operations/%s"}}`)),
			own.Request(quoted(`{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"durward://operations/%s"}}`)),
			own.Request(quoted(`{"jsonrpc":"2.0","id":7,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"durward://operations/{operation_id}"},"argument":{"name":"operation_id","value":"%.8s"}}}`)),
			harness.Stateless(thief.token, "resources/read", uri, `{"uri":"`+uri+`"}`),
			tasks("tasks/get", `{"taskId":"`+id+`"}`), tasks("tasks/cancel", `{"taskId":"`+id+`"}`),
			tasks("tasks/update", `{"taskId":"`+id+`","inputResponses":{}}`),
		}
	}
	theirs, others := uses(id), uses(nobodys)
	for i, r := range theirs {
		trials++
		a, reference := face(w.raw(r)), face(w.raw(others[i]))
		if a = strings.ReplaceAll(a, id, "ID"); a != strings.ReplaceAll(reference, nobodys, "ID") {
			w.t.Logf("%s tells another's operation from nobody's:\n%s\n%s", r.Body, a, reference)
			effects++
		}
		if w.caught(effects) {
			return trials, effects
		}
	}
	// Notifications: the thief listens in both eras while the operation moves.
	ctx, stop := context.WithCancel(w.t.Context())
	defer stop()
	listen := harness.Stateless(thief.token, "subscriptions/listen", "", `{"notifications":{"resourceSubscriptions":["durward://operations/`+id+`"]}}`)
	var heard, listening sync.WaitGroup
	var streams [2]string
	for i, r := range []harness.RawRequest{listen, {Token: thief.token, Method: http.MethodGet, Header: own.Request(nil).Header}} {
		trials++
		listening.Add(1)
		heard.Go(func() { streams[i] = w.listen(ctx, r, listening.Done) })
	}
	listening.Wait()
	if n := w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND state != 1`, id); n != 0 {
		w.t.Logf("the owner's operation is not pending any more")
		effects += n
	}
	w.approve(id)
	w.pause(w.t.Context(), time.Second)
	stop()
	heard.Wait()
	for _, s := range streams {
		if strings.Contains(s, "notifications/resources/updated") {
			w.t.Logf("the thief was told: %s", s)
			effects++
		}
	}
	return trials, effects
}

// listen returns what a stream said until ctx ended, and tells once whether there is one is known.
func (w *world) listen(ctx context.Context, r harness.RawRequest, known func()) string {
	request, err := r.HTTP(ctx, w.h.MCPURL())
	if err != nil {
		known()
		return ""
	}
	response, err := http.DefaultClient.Do(request)
	known()
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var out strings.Builder
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		out.WriteString(lines.Text() + "\n")
	}
	return out.String()
}
