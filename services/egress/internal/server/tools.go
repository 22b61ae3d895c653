// Package server is what egress serves: the tools that reach other hosts, and the human's side of the process. Each call was admitted by
// the sink's discipline before a handler runs; here it is held to egress' own list of domains, at every hop.
//
// It trusts its configuration and the dialer. What servers answer is hostile, and leaves as text from outside.
package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/html/charset"
	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/egress/internal/page"
	"durward.internal/services/platform/connections"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/suspicion"
)

// window is how much of a page's text one answer holds, in bytes.
const window = 6000

// Tools implements egressv1.ToolServiceServer.
type Tools struct {
	egressv1.UnimplementedToolServiceServer
	// dialer follows redirects, as cfg says; sender follows none.
	dialer, sender *dialer.Dialer
	domains        func() *destination.List
	// refuse is from which severity on a suspicious host on no list is refused; none: never.
	refuse suspicion.Severity
	vault  Releaser
	report Reports
	// hosts have answered; seen is what became of the requests of sessions, and ended counts them.
	hosts *Hosts
	seen  observed
	ended *prometheus.CounterVec
	under atomic.Int32
}

// Config is what NewTools needs.
type Config struct {
	// Dialer says where requests may go, whatever Domains allows; its Allow is not used.
	Dialer  dialer.Config
	Domains func() *destination.List
	// Refuse is from which severity on a suspicious host on no list is refused; none: never.
	Refuse  suspicion.Severity
	Vault   Releaser
	Reports Reports
	// Hosts are those that have answered before; nil: none has, and they are forgotten with the process.
	Hosts   *Hosts
	Metrics prometheus.Registerer
}

// Releaser gives what a credential puts into a header; vaultv1.ReleaseServiceClient is one.
type Releaser interface {
	ReleaseForRequest(ctx context.Context, in *vaultv1.ReleaseForRequestRequest, opts ...grpc.CallOption) (*vaultv1.ReleaseForRequestResponse, error)
}

// NewTools returns the tools.
func NewTools(c Config) (*Tools, error) {
	t := &Tools{domains: c.Domains, refuse: c.Refuse, vault: c.Vault, report: c.Reports, hosts: c.Hosts, ended: endings(c.Metrics)}
	if t.hosts == nil {
		t.hosts = &Hosts{names: map[string]bool{}}
	}
	c.Dialer.Allow = t.admit
	var err error
	if t.dialer, err = dialer.New(c.Dialer); err != nil {
		return nil, err
	}
	c.Dialer.Redirects = dialer.AnAnswer
	t.sender, err = dialer.New(c.Dialer)
	return t, err
}

// UnderWay is how many requests to other hosts are under way.
func (t *Tools) UnderWay() int { return int(t.under.Load()) }

// approved is the host that a human said yes to in this very call, beside what is on the list.
type approved struct{}

// admit holds a destination to the list, before its name is looked up: the first of a call, and each that a redirect leads to.
func (t *Tools) admit(ctx context.Context, to destination.Destination) error {
	party := sink.For(ctx)
	switch verdict, by := t.domains().Judge(destination.Party{Client: party.Client, Agent: party.Agent, User: party.User}, to); verdict {
	case destination.Allowed:
		return nil
	case destination.Blocked:
		return destination.Refuse(destination.RuleDestination, "%s is blocked, by %s", to, by.Domain)
	default:
		if host, _ := ctx.Value(approved{}).(string); host != "" && host == to.Host {
			return t.unsuspicious(to)
		}
		return destination.Refuse(destination.RuleDestination, "%s is on no list of domains; ask for that URL itself, so that a human is asked", to)
	}
}

// ruleSuspicious is broken by hosts that a human's file has refused for their names, where no list has them.
const ruleSuspicious destination.Rule = "suspicious"

// unsuspicious refuses a host on no list whose flags reach the threshold.
func (t *Tools) unsuspicious(to destination.Destination) error {
	if flags := suspicion.Of(to.Host); t.refuse != suspicion.None && suspicion.Worst(flags) >= t.refuse {
		return destination.Refuse(ruleSuspicious, "%s is suspicious: %s; where that is wrong, a human lists the domain", to, flags[0].Why)
	}
	return nil
}

// FetchUrl implements the tool fetch_url.
func (t *Tools) FetchUrl(ctx context.Context, r *egressv1.FetchUrlRequest) (*egressv1.FetchUrlResponse, error) { //nolint:revive // the contract's name
	t.under.Add(1)
	defer t.under.Add(-1)
	u, to, err := destination.ParseURL(r.GetUrl())
	if err != nil {
		return nil, explained(ctx, err)
	}
	method := http.MethodGet
	if r.GetHead() {
		method = http.MethodHead
	}
	ctx, ended := t.observe(ctx, "fetch_url", method, u, to, 0)
	defer ended()
	if sink.For(ctx).Approved {
		ctx = context.WithValue(ctx, approved{}, to.Host)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, explained(ctx, destination.Refuse(destination.RuleURL, "that is no URL"))
	}
	req.Header.Set("User-Agent", "durward")
	req.Header.Set("Accept", "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1")
	answer, err := t.dialer.Do(req)
	if err != nil {
		return nil, explained(ctx, err)
	}
	noteAnswer(ctx, answer)
	text, err := readable(answer)
	if err != nil {
		return nil, explained(ctx, err)
	}
	sink.Cut(ctx, func(out *egressv1.FetchUrlResponse) { shorten(out, int(r.GetCursor())) })
	sink.Summarise(ctx, fmt.Sprintf("the server answered with status %d, %d bytes of text", answer.Status, len(text)))
	return &egressv1.FetchUrlResponse{
		Status: uint32(min(max(answer.Status, 0), 999)), Url: answer.URL.String(), ContentType: answer.Header.Get("Content-Type"), Text: text,
	}, nil
}

// shorten makes of an answer with a whole text the one with the part that begins at a cursor.
func shorten(out *egressv1.FetchUrlResponse, cursor int) {
	from, until := cut(out.GetText(), cursor)
	out.Cursor, out.More, out.Text = uint32(until), until < len(out.GetText()), out.GetText()[from:until]
}

// cut is the part of a text that begins at a cursor, at most a window long: whole characters and whole references alone. References are
// there already: a value that was cut would be none.
func cut(text string, cursor int) (from, until int) {
	from = reference.Edge(text, cursor)
	until = reference.Edge(text, from+window)
	if i := strings.LastIndexByte(text[from:until], '\n'); until < len(text) && i > window/2 {
		until = from + i + 1
	}
	return from, until
}

// readable is an answer's text: pages as Markdown, other text as it is. What is no text is not given.
func readable(answer *dialer.Answer) (string, error) {
	if len(answer.Body) == 0 {
		return "", nil
	}
	kind, parameters := mediaType(answer)
	isPage := kind == "text/html" || kind == "application/xhtml+xml"
	isText := strings.HasPrefix(kind, "text/") || kind == "application/json" || kind == "application/xml" || kind == "application/javascript" ||
		strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml") || kind == "application/yaml" || kind == "application/x-ndjson"
	if !isPage && !isText {
		return "", destination.Refuse(ruleContent, "the answer is no text by its own word, and is not given")
	}
	body := answer.Body
	if !utf8.Valid(body) || parameters["charset"] != "" {
		converted, err := charset.NewReader(bytes.NewReader(body), answer.Header.Get("Content-Type"))
		if err == nil {
			body, err = io.ReadAll(io.LimitReader(converted, int64(4*len(body))))
		}
		if err != nil {
			return "", destination.Refuse(ruleContent, "the answer is in a character set that is not known")
		}
	}
	if bytes.IndexByte(body, 0) >= 0 {
		return "", destination.Refuse(ruleContent, "the answer says that it is text, and is not")
	}
	text := strings.ToValidUTF8(string(body), "\uFFFD")
	if isPage {
		text = page.Markdown([]byte(text), answer.URL)
	}
	return text, nil
}

// mediaType is an answer's type and its parameters, without them where they cannot be read: servers write charset twice, or without a value.
// The type is "" where the answer has none.
func mediaType(answer *dialer.Answer) (kind string, parameters map[string]string) {
	header := answer.Header.Get("Content-Type")
	kind, parameters, err := mime.ParseMediaType(header)
	if err != nil {
		kind, _, _ = strings.Cut(header, ";")
		kind, _, _ = mime.ParseMediaType(kind) // without parameters it is one, or nothing
	}
	return kind, parameters
}

// ruleContent is broken by answers that are no text.
const ruleContent destination.Rule = "content"

// explained is what the caller hears of an error: one sentence with the rule that refused. Which address a name has is for the record.
func explained(ctx context.Context, err error) error {
	refused := (*destination.Error)(nil)
	if !errors.As(err, &refused) {
		return err
	}
	if refused.Rule == destination.RuleNone {
		return fault.New(callv1.Code_CODE_FAILED, refused.Why, fault.WithCause(refused.Cause))
	}
	if c := observation(ctx); c != nil {
		c.Verdict, c.Rule = connections.Refused, string(refused.Rule)
	} else {
		sink.Detail(ctx, "rule", string(refused.Rule))
	}
	code, why := callv1.Code_CODE_FAILED, refused.Why
	switch refused.Rule {
	case destination.RuleURL, destination.RuleScheme:
		code = callv1.Code_CODE_INVALID_ARGUMENT
	case destination.RuleAddress, destination.RuleOwn:
		sink.Detail(ctx, "why", refused.Why) // an address and what it is; of other rules the summary says it, with references
		why = "the URL leads to an address that is not of the public network"
	}
	return fault.New(code, why+" (rule: "+string(refused.Rule)+")", fault.WithField("url"), fault.WithCause(refused))
}
