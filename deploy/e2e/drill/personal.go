package drill

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/rpc"
)

// personalLines are attacks on personal data: what leaves with it, and what references of others bring back.
func personalLines() []Line {
	return []Line{
		{"personal-values", map[string]string{harness.Egress: "tokenise"}, personalValues},
		{"personal-references", map[string]string{harness.Vault: "references"}, othersReferences},
	}
}

// personal marks the domain of all addresses of mail here, which nothing else on this machine does.
const personal = "durward-drill-people.example"

// perPage is how many people a page has: no more than one answer shows. Each has four values.
const perPage = 10

// person are the values of one of many people.
func person(n int) [4]string {
	account := fmt.Sprintf("370400440532%06d", n%1_000_000)
	check := new(big.Int)
	check.SetString(account+"131400", 10) // DE00 behind it, in figures
	card := fmt.Sprintf("411111%09d", n%1_000_000_000)
	return [4]string{
		fmt.Sprintf("person-%d@%s", n, personal), fmt.Sprintf("+49 30 9%07d", n%10_000_000),
		fmt.Sprintf("DE%02d%s", 98-check.Mod(check, big.NewInt(97)).Int64(), account), card + strconv.Itoa(luhn(card)),
	}
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

// peoplePage is a page about people, from one on.
func peoplePage(from string) string {
	first, _ := strconv.Atoi(from)
	var b strings.Builder
	for n := first; n < first+perPage; n++ {
		p := person(n)
		fmt.Fprintf(&b, "customer %d: mail %s, phone %s, IBAN %s, card %s\n", n, p[0], p[1], p[2], p[3])
	}
	return b.String()
}

// personalValues reads pages full of personal data with the vault's own grants. Its effects are values in the answers, in the log, in what the
// processes write of themselves and in their files, the vault's among them.
func personalValues(w *world) (trials, effects int) {
	var s *agentSession
	for n := range w.tries(100_000, 4_000) / (4 * perPage) {
		if n%25 == 0 {
			s = w.open() // a session holds a thousand values
		}
		first := n * perPage
		url := w.out.at(fmt.Sprintf("/people/%d", first))
		page, err := w.fetch(url, rpc.MetadataGrant, marshal(w.fetchGrant(s, url)))
		w.must(err)
		if text := page.GetText(); !strings.Contains(text, fmt.Sprintf("customer %d:", first+perPage-1)) {
			w.t.Fatalf("the page is %.300q, and nothing is proved", text)
		}
		for i := first; i < first+perPage; i++ {
			for _, value := range person(i) {
				trials++
				if strings.Contains(page.GetText(), value) {
					effects++
				}
			}
		}
		// A failure that would name one.
		away := w.out.at(fmt.Sprintf("/?to=http://person-%d.%s/", first, personal))
		if _, err := w.fetch(away, rpc.MetadataGrant, marshal(w.fetchGrant(s, away))); err == nil {
			w.t.Fatal("a redirect to a host that is on no list is followed")
		}
		if w.caught(effects) {
			return trials, effects
		}
	}
	return trials, effects + w.mentions("@"+personal)
}

// mentions is in how many places of an installation a text stands: its files, and what its processes write.
func (w *world) mentions(text string) (n int) {
	for _, role := range append(harness.Roles(), harness.Egress) {
		if strings.Contains(w.h.Process(role).Log(), text) {
			w.t.Logf("the log of the %s holds %s", role, text)
			n++
		}
	}
	files := 0
	w.must(filepath.WalkDir(w.h.Dir, func(path string, entry fs.DirEntry, err error) error {
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

// sends asks for a request with a body, has the operator approve whatever waits, carries it out, and returns the grant with the arguments that it is
// for; nil where there is none.
func (w *world) sends(s *agentSession, path, body string) (*callv1.SignedGrant, []byte) {
	w.t.Helper()
	raw, err := json.Marshal(map[string]string{"url": w.out.at(path), "method": "POST", "body": body})
	w.must(err)
	t := w.tool("http_request")
	request, err := t.Decode(raw)
	w.must(err)
	arguments, err := contract.Canonical(request)
	w.must(err)
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	asked, err := vaultv1.NewAuthorityServiceClient(w.gatewayVault).Authorise(ctx, &vaultv1.AuthoriseRequest{SessionId: s.handle, Tool: t.Ref(), Arguments: arguments})
	if err != nil {
		return nil, nil
	}
	w.h.Approve(asked.GetOperationId())
	granted, err := w.waitFor(callTime, s.permits["vault"], asked.GetOperationId())
	w.must(err)
	request, err = t.Decode(granted.GetArguments())
	w.must(err)
	_, _ = w.send(w.gatewayEgress, t, request, rpc.MetadataGrant, marshal(granted.GetGrant())) // what arrives counts
	return granted.GetGrant(), granted.GetArguments()
}

// received is how often a text came to the outside.
func (o *outside) received(text string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(o.sent.String(), text)
}

var refs = regexp.MustCompile(`\[\[PII:EMAIL:tkn_[a-z2-7]{26}\]\]`)

// othersReferences has sessions send references that are not theirs, or that nobody was given, with a human who approves everything. Its effects
// are values that arrive; so are those of a genuine call's reference that arrive again, or that another process than its sink is given.
func othersReferences(w *world) (trials, effects int) {
	owner := w.open()
	const own = "owner@" + personal
	genuine, arguments := w.sends(owner, "/genuine", "to "+own)
	if w.out.received(own) != 1 {
		w.t.Fatal("what an agent sent itself does not arrive, and nothing is proved")
	}
	page := w.out.at("/people/0")
	read, err := w.fetch(page, rpc.MetadataGrant, marshal(w.fetchGrant(owner, page)))
	w.must(err)
	held, sent := refs.FindString(read.GetText()), refs.FindString(string(arguments))
	if held == "" || sent == "" {
		w.t.Fatalf("there is no reference in %q or in %s", read.GetText(), arguments)
	}
	count := func() int { return w.out.received("@"+personal) - 1 }
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
		ctx, cancel := w.ctx(callTime)
		delivered, err := client.Deliver(ctx, &vaultv1.DeliverRequest{Grant: genuine})
		cancel()
		if err == nil && len(delivered.GetCapabilities()) > 0 {
			taken++
		}
	}
	return trials + 1, count() + taken
}
