package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/rpc"
)

// personalLines are attacks on personal data: what leaves with it, and what references of others bring back.
func personalLines() []Line {
	return []Line{
		// First, since a control of the others leaves values behind.
		{"personal-in-use", map[string]string{harness.Egress: "tokenise"}, personalInUse},
		{"personal-values", map[string]string{harness.Egress: "tokenise", harness.Executor: "tokenise"}, personalValues},
		{"personal-vault-killed", map[string]string{harness.Egress: "tokenise"}, deliveriesUnderKills},
		{"personal-references", map[string]string{harness.Vault: "references"}, othersReferences},
	}
}

// perPage is how many people a page has: no more than one answer shows. Each has four values.
const perPage = 10

// crowd are the people of one world. Nothing else on this machine has its domain of mail or its number, the other world's crowd included.
type crowd struct {
	domain string
	number int
}

func newCrowd(weak bool) crowd {
	c := crowd{"durward-drill-" + grant.NewID()[:8] + ".example", 1000 + 2*rand.IntN(4500)}
	if weak {
		c.number++
	}
	return c
}

// person are the values of one of many people.
func (c crowd) person(n int) [4]string {
	account := fmt.Sprintf("37040044%04d%06d", c.number, n%1_000_000)
	check := new(big.Int)
	check.SetString(account+"131400", 10) // DE00 behind it, in figures
	card := fmt.Sprintf("41111%04d%06d", c.number, n%1_000_000)
	return [4]string{
		fmt.Sprintf("person-%d@%s", n, c.domain), fmt.Sprintf("+49 30 9%02d%05d", c.number%100, n%100_000),
		fmt.Sprintf("DE%02d%s", 98-check.Mod(check, big.NewInt(97)).Int64(), account), card + strconv.Itoa(luhn(card)),
	}
}

// markers are what the values of all but very many of its people hold, one for each of a person's four.
func (c crowd) markers() []string {
	return []string{"@" + c.domain, fmt.Sprintf("+49 30 9%02d0", c.number%100), fmt.Sprintf("37040044%04d0", c.number), fmt.Sprintf("41111%04d0", c.number)}
}

// luhn is the check digit of a card's other digits.
func luhn(digits string) (check int) {
	for i := range len(digits) {
		d := int(digits[len(digits)-1-i] - '0')
		if i%2 == 0 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		check += d
	}
	return (10 - check%10) % 10
}

// page is a page about people, from one on.
func (c crowd) page(first int) string { return c.some(first, perPage) }

// some is a text about so many.
func (c crowd) some(first, number int) string {
	var b strings.Builder
	for n := first; n < first+number; n++ {
		p := c.person(n)
		fmt.Fprintf(&b, "customer %d: mail %s, phone %s, IBAN %s, card %s\n", n, p[0], p[1], p[2], p[3])
	}
	return b.String()
}

// sources is the service that writes about people and ends: last, as a program whose exception names them.
const sources = "demo-people"

// exits are the ways by which text comes to an agent. Each takes values from first on, of perPage people, and returns what the agent met.
var exits = []struct {
	name string
	meet func(w *world, agent *harness.Client, first int) string
	// guarded by the vault alone, so that no weak sink shows its values.
	vault bool
	// held by the gateway until a human decides, or for a second and a half: at full size most turns of these go to the first.
	held bool
}{
	{"tool", (*world).readPage, false, false}, {"error", (*world).refusedRedirects, false, false}, {"panic", (*world).crash, false, true},
	{"resource", (*world).readOperation, true, true}, {"log", (*world).readLog, false, true},
}

func (w *world) readPage(agent *harness.Client, first int) string {
	return string(agent.Ask("fetch_url", map[string]any{"url": w.out.at(fmt.Sprintf("/people/%d", first))}).Raw)
}

// host is the name of somebody's machine, which holds what withPeople has for a customer's number.
func host(n int) string { return fmt.Sprintf("cust-%06d", n) }

// withPeople is withOutside in an installation with a pattern of the operator's.
func withPeople(w *world) {
	withOutside(w)
	w.h.WriteFile("config/vault.yaml", w.h.ReadFile("config/vault.yaml")+
		"\nprivacy:\n  patterns:\n    - {type: CUSTOMER, expression: 'cust-\\d{6}', examples: [cust-004711]}\n")
}

func (w *world) refusedRedirects(agent *harness.Client, first int) (text string) {
	for n := range 4 * perPage {
		e := agent.Ask("fetch_url", map[string]any{"url": w.out.at("/?to=http://" + host(4*first+n) + ".example/")})
		if e.Status != "error" {
			w.t.Fatalf("a redirect to a host that is on no list is followed: %s", e.Raw)
		}
		text += string(e.Raw)
	}
	return text
}

// crash has the service write and end, in a switch that fails and shows the end of its log.
func (w *world) crash(agent *harness.Client, first int) string {
	traceback := "Traceback (most recent call last):\n  File \"/srv/app.py\", line 12, in serve\nValueError: no such account\n"
	w.h.WriteFile("people.txt", traceback+w.out.people.page(first))
	var plan struct {
		PlanDigest string `json:"plan_digest"`
	}
	agent.Ask("simulate_mode", map[string]any{"mode_id": sources}).Decode(w.t, &plan)
	asked := agent.Ask("switch_mode", map[string]any{"mode_id": sources, "plan_digest": plan.PlanDigest})
	w.h.Approve(asked.OperationID)
	return string(agent.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID}).Raw)
}

// readLog reads what crash left behind, which it wrote about others.
func (w *world) readLog(agent *harness.Client, first int) string {
	w.crash(agent, first)
	return string(agent.Ask("service_logs", map[string]any{"service_id": sources, "lines": 2 * perPage}).Raw)
}

// readOperation asks for calls about people, and reads what waits for a human; few at a time, since what is read there is cut.
func (w *world) readOperation(agent *harness.Client, first int) (text string) {
	const few = 2
	for n := first; n < first+perPage; n += few {
		asked := agent.Ask("http_request", map[string]any{"url": w.out.at("/told"), "method": "POST", "body": w.out.people.some(n, few)})
		read, err := agent.ReadResource(w.t.Context(), &mcp.ReadResourceParams{URI: "durward://operations/" + asked.OperationID})
		w.must(err)
		agent.Ask("withdraw_operation", map[string]any{"operation_id": asked.OperationID})
		text += read.Contents[0].Text
	}
	return text
}

// personalValues takes values out by every exit, through the gateway. Its effects are values that the agent meets, and places in the log, in
// what the processes write of themselves and in their files that hold one, the vault's among them. A control has to be caught at each exit that
// a sink guards.
func personalValues(w *world) (trials, effects int) {
	w.arrange()
	catalogue := w.h.ReadFile("config/catalogue.yaml")
	w.h.WriteFile("people.sh", "cat people.txt\nexit 1\n")
	w.h.WriteFile("config/catalogue.yaml", catalogue+fmt.Sprintf(`  - {id: %s, name: People, driver: process, argv: [/usr/bin/env, sh, people.sh], working_dir: %q, port: %d, health: {path: /health}, stop_timeout_s: 2}
modes:
  - {id: %[1]s, name: People, services: [%[1]s]}
`, sources, w.h.Dir, w.h.Port(4)))
	defer w.h.WriteFile("config/catalogue.yaml", catalogue)
	harness.Eventually(w.t, "the executor knows the new entry", func() error { _, err := w.preview("start_service", sources); return err })
	var agent *harness.Client
	met := make([]int, len(exits))
	rounds := w.size(100_000, 1_000) / (4 * perPage)
	if w.weak {
		rounds = len(exits)
	}
	for n := range rounds {
		if n%15 == 0 {
			agent = w.h.Connect(w.agent().token) // a session holds a thousand values
		}
		exit, first := n%len(exits), n*perPage
		if turn := n / len(exits); exits[exit].held && turn >= 5 && turn%10 != 0 {
			exit = 0
		}
		text := exits[exit].meet(w, agent, first)
		values, last := 0, fmt.Sprintf("customer %d:", first+perPage-1)
		for i := first; i < first+perPage; i++ {
			for k, value := range w.out.people.person(i) {
				if exits[exit].name == "error" {
					value, last = host(4*i+k), "on no list"
				}
				if trials++; strings.Contains(text, value) {
					values++
				}
			}
		}
		if !strings.Contains(text, last) || !w.weak && strings.Count(text, "tkn_") < 2*perPage {
			w.t.Fatalf("%s: the agent meets %.5000s, and nothing is proved", exits[exit].name, text)
		}
		if met[exit] += values; values > 0 && !w.weak {
			w.t.Logf("%s: %d values in %.2000s", exits[exit].name, values, text)
		}
		effects += values
	}
	if w.weak {
		for i, exit := range exits {
			if met[i] == 0 && !exit.vault {
				w.t.Errorf("%s: no value is found where nothing takes it away", exit.name)
			}
		}
		return trials, effects
	}
	w.must(os.Remove(w.h.Path("people.txt")))
	// The executor keeps what services write, which is where these values come from.
	return trials, effects + w.mentions("@"+w.out.people.domain, w.h.Path("state", harness.Executor))
}

// personalInUse has agents read about people through the gateway, and searches for what they read at every moment of that, as for the
// secrets. Its effects are the places where a value was found beyond the vault, its detectors and egress, which reads the pages. What egress
// retains is counted, and no effect.
func personalInUse(w *world) (trials, effects int) {
	s := newSearch(w, w.out.port(), w.out.people.markers()...)
	ctx, stop := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { s.watch(ctx) })
	for range w.tries(1_000, 200) / (4 * perPage) {
		first := trials / 4
		text := w.readPage(w.h.Connect(w.agent().token), first)
		if !strings.Contains(text, fmt.Sprintf("customer %d:", first)) {
			w.t.Fatalf("the agent meets %.5000s, and nothing is proved", text)
		}
		if trials += 4 * perPage; w.caught(s.places()) {
			break
		}
	}
	stop()
	running.Wait()
	s.memories()
	s.elsewhere()
	w.note = fmt.Sprintf("egress retains %d of %d addresses of mail, ", retained(w.h.Process(harness.Egress).PID(), w.out.people.domain), trials/4)
	return trials, s.effects()
}

// retained counts the addresses of mail in a process's memory.
func retained(pid int, domain string) int {
	found, mail := map[string]bool{}, regexp.MustCompile(`person-[0-9]+@`+regexp.QuoteMeta(domain))
	readMemory(pid, func(raw []byte) {
		for _, one := range mail.FindAll(raw, -1) {
			found[string(one)] = true
		}
	})
	return len(found)
}

// mentions is in how many places of an installation a text stands: its files but those of one folder, and what its processes write.
func (w *world) mentions(text, but string) (n int) {
	for _, role := range append(harness.Roles(), harness.Egress) {
		if strings.Contains(w.h.Process(role).Log(), text) {
			w.t.Logf("the log of the %s holds %s", role, text)
			n++
		}
	}
	files := 0
	w.must(filepath.WalkDir(w.h.Dir, func(path string, entry fs.DirEntry, err error) error {
		if path == but {
			return filepath.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // others' files come and go
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if files++; strings.Contains(string(raw), text) {
			w.t.Logf("%s holds %s", path, text)
			n++
		}
		return nil
	}))
	if files < 10 {
		w.t.Fatalf("only %d files were searched", files)
	}
	return n
}

// asks asks for a request with a body, has the operator approve whatever waits, and returns the grant with the arguments that it is for; nil
// where there is none.
func (w *world) asks(s *agentSession, path, body string) *vaultv1.WaitOperationResponse {
	w.t.Helper()
	raw, err := json.Marshal(map[string]string{"url": w.out.at(path), "method": "POST", "body": body})
	w.must(err)
	t := w.tool("http_request")
	request, err := t.Decode(raw)
	w.must(err)
	arguments, err := contract.Canonical(request)
	w.must(err)
	asked, err := w.authorise(s.handle, "http_request", arguments)
	if err != nil {
		return nil
	}
	w.h.Approve(asked.GetOperationId())
	granted, err := w.waitFor(callTime, s.permits["vault"], asked.GetOperationId())
	w.must(err)
	return granted
}

// carriesOut sends what was granted, and returns the answer's text.
func (w *world) carriesOut(granted *vaultv1.WaitOperationResponse) string {
	w.t.Helper()
	t := w.tool("http_request")
	request, err := t.Decode(granted.GetArguments())
	w.must(err)
	answer, err := w.send(w.gatewayEgress, t, request, rpc.MetadataGrant, marshal(granted.GetGrant()))
	if err != nil {
		return err.Error() // what arrives counts
	}
	return answer.(*egressv1.HttpRequestResponse).GetText()
}

// sends asks for a request and carries it out, and returns the grant and the arguments; nil where there is none.
func (w *world) sends(s *agentSession, path, body string) (*callv1.SignedGrant, []byte) {
	w.t.Helper()
	granted := w.asks(s, path, body)
	if granted == nil {
		return nil, nil
	}
	w.carriesOut(granted)
	return granted.GetGrant(), granted.GetArguments()
}

// received is how often a text came to the outside.
func (o *outside) received(text string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(o.sent.String(), text)
}

var mailRefs = regexp.MustCompile(`\[\[PII:EMAIL:tkn_[a-z2-7]{26}\]\]`)

// othersReferences has sessions send references that are not theirs, or that nobody was given, with a human who approves everything. Its effects
// are values that arrive; so are those of a genuine call's reference that arrive again, or that another process than its sink is given.
func othersReferences(w *world) (trials, effects int) {
	owner := w.open()
	domain := w.out.people.domain
	own := "owner@" + domain
	genuine, arguments := w.sends(owner, "/genuine", "to "+own)
	if w.out.received(own) != 1 {
		w.t.Fatal("what an agent sent itself does not arrive, and nothing is proved")
	}
	page := w.out.at("/people/0")
	read, err := w.fetch(page, rpc.MetadataGrant, marshal(w.fetchGrant(owner, page)))
	w.must(err)
	held, sent := mailRefs.FindString(read.GetText()), mailRefs.FindString(string(arguments))
	if held == "" || sent == "" {
		w.t.Fatalf("there is no reference in %q or in %s", read.GetText(), arguments)
	}
	count := func() int { return w.out.received("@"+domain) - 1 }
	try := func(s *agentSession, body string) bool {
		trials++
		w.sends(s, "/others", body)
		effects = count()
		return w.caught(effects)
	}
	edited := func(ref string, n int) string {
		at := len(ref) - 3 - n%26
		with := byte('a')
		if ref[at] == with {
			with = 'b'
		}
		return ref[:at] + string(with) + ref[at+1:]
	}
	other := w.open()
	for _, ref := range []string{sent, held} {
		for _, body := range []string{ref, ref + ref, `{"$pii_ref":"` + ref[12:42] + `","type":"EMAIL"}`, strings.Replace(ref, "EMAIL", "PHONE", 1), strings.Replace(ref, "PII", "SECRET", 1), "[[PII:EMAIL:*]]"} {
			if try(other, body) {
				return trials, effects
			}
		}
	}
	if try(owner, held) { // its own, and no rule names it
		return trials, effects
	}
	for n := range w.size(2_000, 26) {
		guess := reference.Reference{Class: reference.PII, Type: "EMAIL", ID: reference.NewID()}
		for _, body := range []string{edited(sent, n), edited(held, n), guess.Marshal()} {
			if try(owner, body) || try(other, body) {
				return trials, effects
			}
		}
	}
	taken := 0
	// A genuine call's grant again, at its sink, and at the vault with every other process' certificate.
	t := w.tool("http_request")
	request, err := t.Decode(arguments)
	w.must(err)
	_, _ = w.send(w.gatewayEgress, t, request, rpc.MetadataGrant, marshal(genuine))
	for _, role := range []string{harness.Gateway, harness.Audit, harness.Executor, harness.Egress} {
		trials++
		client := vaultv1.NewDisclosureServiceClient(w.dial(w.source(role), harness.Vault, w.h.Identity(harness.Vault)))
		delivered, err := unary(w, client.Deliver, &vaultv1.DeliverRequest{Grant: genuine})
		if err == nil && len(delivered.GetCapabilities()) > 0 {
			taken++
		}
	}
	return trials + 1, count() + taken
}
