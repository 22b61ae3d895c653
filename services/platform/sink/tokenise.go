package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/outside"
	"durward.internal/services/platform/reference"
)

// withheld stands where text from outside was, when nobody could look through it.
const (
	withheld         = "(withheld: it could not be checked for secrets)"
	sayFaultWithheld = "what went wrong is withheld, because it could not be checked for personal data"
	sayAskAgain      = "; ask again"
	sayWithheld      = "text from the services was withheld, because it could not be checked for secrets"
)

// checkOrigins holds what a tool, or an RPC under its permit, returns to what this sink can have cleaned: text from outside
// needs a tokeniser, a whole answer to look through, and to be text.
func (a *Authority) checkOrigins(name string, m protoreflect.MethodDescriptor, stream bool) error {
	outside := contract.Permitted{Method: m}.OutsideFields()
	switch {
	case len(outside) == 0:
		return nil
	case a.cfg.Tokeniser == nil || stream:
		return fmt.Errorf("%s returns text from outside, which nothing here tokenises: %s", name, strings.Join(outside, ", "))
	}
	if odd := contract.Opaque(m.Output()); len(odd) > 0 {
		return fmt.Errorf("%s returns what nothing can look through: %s", name, strings.Join(odd, ", "))
	}
	return nil
}

// shortened returns the response as its handler wants it cut.
func (n *notes) shortened(response proto.Message) proto.Message {
	if n.cut != nil {
		n.cut(response)
	}
	return response
}

// tokenise returns the response with every text from outside as the session's agent may see it, in strings and in the keys of
// maps, however deep. The session is that of the grant or permit that the call came with; an operator's own read, which came
// with neither, is shown as it is. What the handler said lies around its text is asked about with it, and counts for nothing.
func (a *Authority) tokenise(ctx context.Context, c *call, n *notes, response proto.Message) (proto.Message, error) {
	if !tokenisationRequired() || c.signedGrant == nil && c.signedPermit == nil || a.catalogue[c.rpc()] {
		return response, nil
	}
	out := proto.Clone(response)
	found := outside.Find(out.ProtoReflect())
	var around []string
	if n.around != "" {
		around = []string{outside.AtMost(n.around)}
	}
	for batch := found.Take(around); len(batch) > 0; batch = found.Take(around) {
		var texts []string
		for _, h := range batch {
			texts = append(texts, h.Text)
		}
		answer, err := a.askTokeniser(ctx, c, append(texts, around...))
		if err != nil {
			return nil, err
		}
		for i, h := range batch {
			h.Set(answer.GetTexts()[i])
			c.replaced += max(outside.Replacements(answer.GetTexts()[i])-outside.Replacements(h.Text), 0)
		}
	}
	return out, found.Complete()
}

// under asks about texts under what the call came with.
func (c *call) under(texts []string) *vaultv1.TokeniseRequest {
	if c.signedGrant != nil {
		return &vaultv1.TokeniseRequest{Under: &vaultv1.TokeniseRequest_Grant{Grant: c.signedGrant}, Texts: texts}
	}
	return &vaultv1.TokeniseRequest{Under: &vaultv1.TokeniseRequest_Permit{Permit: c.signedPermit}, Texts: texts}
}

// askTokeniser asks the vault; up to three times, where it is busy, about what is kept, which is withheld from now on or never.
func (a *Authority) askTokeniser(ctx context.Context, c *call, texts []string) (*vaultv1.TokeniseResponse, error) {
	for try := 1; ; try++ {
		asking, cancel := context.WithTimeout(ctx, vaultTimeout)
		answer, err := a.cfg.Tokeniser.Tokenise(asking, c.under(texts))
		cancel()
		switch {
		case err == nil && len(answer.GetTexts()) != len(texts):
			return nil, errors.New("the vault answered with another number of texts")
		case err == nil || !c.kept || try == 3 || fault.From(err).Code != callv1.Code_CODE_UNAVAILABLE:
			return answer, err
		}
	}
}

// tokeniseRead is tokenise for an answer that has no effect behind it: what could not be looked through is not given.
func (a *Authority) tokeniseRead(ctx context.Context, c *call, n *notes, response proto.Message) (proto.Message, error) {
	out, err := a.tokenise(ctx, c, n, response)
	switch {
	case err == nil:
		return n.shortened(out), nil
	case fault.Is(err, callv1.Code_CODE_SEALED):
		return nil, err // to ask again does not help
	}
	return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, sayUntokenised, fault.WithCause(fmt.Errorf("tokenise: %w", err)), fault.WithRetry(retryInterval))
}

// tokeniseFault is tokenise for what the caller hears of a failure. A sentence of plain words holds no value, and the vault is not asked;
// another that nobody could look through is withheld.
func (a *Authority) tokeniseFault(ctx context.Context, c *call, err error) error {
	f := fault.From(err)
	var texts []string
	for _, text := range append([]string{f.Message}, f.DidYouMean...) {
		texts = append(texts, clean.Text(text, clean.Whole))
	}
	if !tokenisationRequired() || a.cfg.Tokeniser == nil || c.signedGrant == nil && c.signedPermit == nil || !slices.ContainsFunc(texts, outside.Remarkable) {
		return err
	}
	told := *f
	answer, asking := a.askTokeniser(ctx, c, texts)
	if asking != nil {
		told.Message, told.DidYouMean = sayFaultWithheld, nil
		if !c.kept {
			told.Message += sayAskAgain
		}
		told.Cause = errors.Join(f, asking)
		return &told
	}
	for i, text := range answer.GetTexts() {
		c.replaced += max(outside.Replacements(text)-outside.Replacements(texts[i]), 0)
	}
	told.Message, told.DidYouMean = clean.Line(answer.GetTexts()[0], clean.Whole), answer.GetTexts()[1:]
	// A fault leaves with 500 characters. What is cut here ends in no part of a reference.
	if end := reference.Edge(told.Message, len(clean.Line(told.Message, 490))); end < len(told.Message) {
		told.Message = told.Message[:end] + "…"
	}
	return &told
}

// tokeniseDone is tokenise for the answer of a change. What was done is told in any case; text from outside that could not be
// looked through is withheld, and a warning says so.
func (a *Authority) tokeniseDone(ctx context.Context, c *call, n *notes, response proto.Message) proto.Message {
	out, err := a.tokenise(ctx, c, n, response)
	if err == nil {
		return n.shortened(out)
	}
	a.cfg.Logger.ErrorContext(ctx, "text from outside could not be tokenised and is withheld", "tool", c.tool.Name,
		"operation", c.grant.GetOperationId(), "error", err)
	out = proto.Clone(response)
	outside.Find(out.ProtoReflect()).Withhold(withheld)
	n.warnings = append(n.warnings, sayWithheld)
	return n.shortened(out)
}
