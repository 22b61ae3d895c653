package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/handover"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/statement"
)

// HttpRequest implements the tool http_request: one request, as a human saw it. Credentials are fetched last, and go into their places
// alone.
func (t *Tools) HttpRequest(ctx context.Context, r *egressv1.HttpRequestRequest) (*egressv1.HttpRequestResponse, error) { //nolint:revive // the contract's name
	t.under.Add(1)
	defer t.under.Add(-1)
	u, to, err := destination.ParseURL(r.GetUrl())
	if err != nil {
		return nil, explained(ctx, err)
	}
	ctx, ended := t.observe(ctx, "http_request", r.GetMethod(), u, to, len(r.GetBody()))
	defer ended()
	if sink.For(ctx).Approved {
		ctx = context.WithValue(ctx, approved{}, to.Host)
	}
	// What the list or the spelling refuses costs no credential.
	if err = t.sender.Spelled(to); err == nil {
		err = t.admit(ctx, to)
	}
	if err != nil {
		return nil, explained(ctx, err)
	}
	req, err := request(ctx, u, r)
	if err != nil {
		return nil, err
	}
	values, err := t.authenticate(ctx, req, r)
	defer handover.Clear(values)
	if err != nil {
		return nil, err
	}
	if err := sink.Confirm(ctx, func() {}); err != nil {
		return nil, err
	}
	answer, err := t.sender.Do(req)
	if err == nil {
		err = judgeModel(u, answer)
	}
	if err != nil {
		return nil, uncertain(explained(ctx, err))
	}
	noteAnswer(ctx, answer)
	text, err := readable(answer)
	if err != nil {
		// It was sent and answered: that is told, and what was answered is not.
		sink.Warn(ctx, "the answer is no text, and is not given")
	}
	hide := hider(values)
	text = hide.Replace(text)
	sink.Cut(ctx, func(out *egressv1.HttpRequestResponse) {
		_, until := cut(out.GetText(), 0)
		out.Cut, out.Text = until < len(out.GetText()), out.GetText()[:until]
	})
	sink.Summarise(ctx, fmt.Sprintf("the server answered with status %d, %d bytes of text", answer.Status, len(text)))
	return &egressv1.HttpRequestResponse{
		Status: uint32(min(max(answer.Status, 0), 999)), ContentType: hide.Replace(answer.Header.Get("Content-Type")),
		Location: hide.Replace(answer.Header.Get("Location")), Text: text,
	}, nil
}

// request is what is sent, without credentials.
func request(ctx context.Context, u *url.URL, r *egressv1.HttpRequestRequest) (*http.Request, error) {
	if r.Body != nil && (r.GetMethod() == http.MethodGet || r.GetMethod() == http.MethodHead) {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a request with the method "+r.GetMethod()+" has no body", fault.WithField("body"))
	}
	req, err := http.NewRequestWithContext(ctx, r.GetMethod(), u.String(), strings.NewReader(r.GetBody()))
	if err != nil {
		return nil, explained(ctx, destination.Refuse(destination.RuleURL, "that is no URL"))
	}
	req.Header.Set("User-Agent", "durward")
	for name, value := range r.GetHeaders() {
		req.Header.Set(name, value)
	}
	return req, nil
}

// authenticate puts each credential of a call into its place, as the vault gives it for this call, this origin and this place. From then
// on the request is secret: what is recorded, told or refused is made of what came before.
func (t *Tools) authenticate(ctx context.Context, req *http.Request, r *egressv1.HttpRequestRequest) (values []handover.Value, err error) {
	if len(r.GetCredentials()) == 0 {
		return nil, nil
	}
	origin, err := statement.Origin(req.URL.String())
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a credential goes over https alone, and to no user's URL", fault.WithField("url"), fault.WithCause(err))
	}
	f := &form{req: req, body: r.GetBody()}
	for _, place := range slices.Sorted(maps.Keys(r.GetCredentials())) {
		name := r.GetCredentials()[place].GetCredential()
		put, err := f.at(place)
		if err != nil {
			return values, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, err.Error(), fault.WithField("credentials"))
		}
		value, err := t.release(ctx, name, origin, statement.Place(place))
		if err != nil {
			return values, err
		}
		values = append(values, value)
		sink.Detail(ctx, "credential_"+place, name)
		if err := put(string(value.Value)); err != nil {
			return values, fault.New(callv1.Code_CODE_FAILED, "the credential "+name+" cannot stand there; nothing was sent")
		}
	}
	f.seal()
	return values, nil
}

// release asks the vault for one value, by a key that is made for it.
func (t *Tools) release(ctx context.Context, name, origin, place string) (handover.Value, error) {
	key, err := handover.NewKey()
	if err != nil {
		return handover.Value{}, err
	}
	released, err := t.vault.ReleaseForRequest(ctx, &vaultv1.ReleaseForRequestRequest{
		Grant: sink.Grant(ctx), Name: name, Origin: origin, Place: place, PublicKey: key.Public(),
	})
	switch f := fault.From(err); {
	case err == nil:
	case f.Code == callv1.Code_CODE_DENIED || f.Code == callv1.Code_CODE_NOT_FOUND:
		return handover.Value{}, fault.New(callv1.Code_CODE_DENIED,
			"the credential "+name+" is not stored, or not granted for "+place+" of requests to that origin by this agent; nothing was sent", fault.WithCause(err))
	default:
		return handover.Value{}, f
	}
	values, err := key.Open(released.GetSealed(), handover.ForRequest(origin, place))
	if err != nil {
		return handover.Value{}, err
	}
	if len(values) != 1 || values[0].Name != name || values[0].Variable != place || !sendable(values[0].Value) {
		handover.Clear(values)
		return handover.Value{}, fault.New(callv1.Code_CODE_FAILED, "the credential "+name+" is not one line of text; nothing was sent")
	}
	return values[0], nil
}

// sendable reports whether a value is one line of text, which every place can hold.
func sendable(value []byte) bool {
	return len(value) > 0 && utf8.Valid(value) && !slices.ContainsFunc(value, func(c byte) bool { return c < ' ' || c == 0x7f })
}

// hider replaces credentials in what a server sends back, as they are and as servers spell what they were sent. A server that a human
// trusts with a credential can spell it otherwise.
func hider(values []handover.Value) *strings.Replacer {
	const hidden = "[a credential was here]"
	var pairs []string
	for _, v := range values {
		whole := string(v.Value)
		scheme, bare, _ := strings.Cut(whole, " ") // behind its scheme
		forms := []string{whole, bare}
		if plain, err := base64.StdEncoding.DecodeString(bare); err == nil && strings.EqualFold(scheme, "Basic") {
			_, password, _ := strings.Cut(string(plain), ":")
			forms = append(forms, string(plain), password)
		}
		for _, text := range forms {
			if text == "" {
				continue
			}
			quoted := strconv.QuoteToASCII(text)
			for _, form := range []string{text, inside(quoted), inside(inJSON(text, true)), inside(inJSON(text, false)), url.QueryEscape(text), url.PathEscape(text), base64.StdEncoding.EncodeToString([]byte(text))} {
				pairs = append(pairs, form, hidden)
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// inside is what stands between quotes.
func inside(quoted string) string { return quoted[1 : len(quoted)-1] }

// judgeModel holds the answer of an LLM's API to its kind (SEC-N2). Where its base URL may lead is the dialer's to say (SEC-V3).
func judgeModel(u *url.URL, answer *dialer.Answer) error {
	if kind, _ := mediaType(answer); speaksModel(u) && len(answer.Body) > 0 && kind != "application/json" {
		return destination.Refuse(ruleContent, "the answer of an LLM's API is to be application/json, and is not")
	}
	return nil
}

// modelPaths end the paths of the calls that LLMs' APIs are made of: OpenAI's and what speaks it, Anthropic's, Google's, Ollama's.
var modelPaths = []string{
	"/chat/completions", "/completions", "/embeddings", "/v1/responses", "/v1/messages", "/v1/models", ":generateContent", ":embedContent", "/api/chat", "/api/generate",
}

func speaksModel(u *url.URL) bool {
	return slices.ContainsFunc(modelPaths, func(end string) bool { return strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), end) })
}

// unsent are the rules that refuse before anything is sent.
var unsent = []destination.Rule{
	destination.RuleURL, destination.RuleScheme, destination.RuleDestination, destination.RulePort, destination.RuleAddress, destination.RuleOwn,
	ruleSuspicious,
}

// uncertain says of a request that was begun and has no answer whether it may have been carried out all the same.
func uncertain(err error) error {
	refused, f := (*destination.Error)(nil), fault.From(err)
	if errors.As(err, &refused) && slices.Contains(unsent, refused.Rule) {
		return f
	}
	return fault.New(f.Code, f.Message+"; the request may have been carried out", fault.WithCause(err))
}
