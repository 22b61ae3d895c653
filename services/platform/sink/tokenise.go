package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// What one request to the vault may hold, by its contract, and how much of that is asked for at once: a message has a bound of
// its own.
const (
	tokeniseTexts = 256
	tokeniseBytes = 256 << 10
	tokeniseBatch = 2 << 20
)

// opening is how a reference begins.
const opening = "[[SECRET:"

// withheld stands where text from outside was, when nobody could look through it.
const (
	withheld    = "(withheld: it could not be checked for secrets)"
	sayWithheld = "text from the services was withheld, because it could not be checked for secrets"
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

// tokenise returns the response with every text from outside as the session's agent may see it, in strings and in the keys of
// maps, however deep. The session is that of the grant or permit that the call came with; an operator's own read, which came
// with neither, is shown as it is. What the handler said lies around its text is asked about with it, and counts for nothing.
func (a *Authority) tokenise(ctx context.Context, c *call, n *notes, response proto.Message) (proto.Message, error) {
	if !tokenisationRequired() || c.signedGrant == nil && c.signedPermit == nil {
		return response, nil
	}
	out, holes := proto.Clone(response), &outside{}
	holes.message(out.ProtoReflect())
	var around []string
	if n.around != "" {
		around = []string{atMost(n.around)}
	}
	for batch := holes.take(around); len(batch) > 0; batch = holes.take(around) {
		request := &vaultv1.TokeniseRequest{}
		if c.signedGrant != nil {
			request.Under = &vaultv1.TokeniseRequest_Grant{Grant: c.signedGrant}
		} else {
			request.Under = &vaultv1.TokeniseRequest_Permit{Permit: c.signedPermit}
		}
		for _, h := range batch {
			request.Texts = append(request.Texts, h.text)
		}
		request.Texts = append(request.Texts, around...)
		answer, err := a.askTokeniser(ctx, request)
		if err != nil {
			return nil, err
		}
		for i, h := range batch {
			h.set(answer.GetTexts()[i])
			c.replaced += max(strings.Count(answer.GetTexts()[i], opening)-strings.Count(h.text, opening), 0)
		}
	}
	return out, holes.complete()
}

func (a *Authority) askTokeniser(ctx context.Context, request *vaultv1.TokeniseRequest) (*vaultv1.TokeniseResponse, error) {
	if a.cfg.Tokeniser == nil {
		return nil, errors.New("no tokeniser")
	}
	ctx, cancel := context.WithTimeout(ctx, vaultTimeout)
	defer cancel()
	answer, err := a.cfg.Tokeniser.Tokenise(ctx, request)
	if err != nil {
		return nil, err
	}
	if len(answer.GetTexts()) != len(request.GetTexts()) {
		return nil, errors.New("the vault answered with another number of texts")
	}
	return answer, nil
}

// tokeniseRead is tokenise for an answer that has no effect behind it: what could not be looked through is not given.
func (a *Authority) tokeniseRead(ctx context.Context, c *call, n *notes, response proto.Message) (proto.Message, error) {
	out, err := a.tokenise(ctx, c, n, response)
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, sayUntokenised, fault.WithCause(fmt.Errorf("tokenise: %w", err)),
			fault.WithRetry(retryInterval))
	}
	return out, nil
}

// tokeniseDone is tokenise for the answer of a change. What was done is told in any case; text from outside that could not be
// looked through is withheld, and a warning says so.
func (a *Authority) tokeniseDone(ctx context.Context, c *call, n *notes, response proto.Message) proto.Message {
	out, err := a.tokenise(ctx, c, n, response)
	if err == nil {
		return out
	}
	a.cfg.Logger.ErrorContext(ctx, "text from outside could not be tokenised and is withheld", "tool", c.tool.Name,
		"operation", c.grant.GetOperationId(), "error", err)
	out = proto.Clone(response)
	holes := &outside{}
	holes.message(out.ProtoReflect())
	for _, h := range holes.open {
		h.set(withheld)
	}
	holes.clearKeys()
	n.warnings = append(n.warnings, sayWithheld)
	return out
}

// outside finds the text of a message that a program or a stranger wrote.
type outside struct {
	open []hole
	// maps are those whose keys are such text.
	maps []*keys
}

// hole is one text and where its replacement goes.
type hole struct {
	text string
	set  func(string)
}

// keys is a map whose keys are from outside: it is filled anew when all of them are known.
type keys struct {
	into   protoreflect.Map
	values map[string]protoreflect.Value
	// renamed is the new key of each.
	renamed map[string]string
}

func (o *outside) message(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		mine := contract.FromCatalog(fd)
		switch {
		case fd.IsMap():
			o.entries(fd, v.Map(), mine)
		case fd.IsList():
			for i := range v.List().Len() {
				o.value(fd, v.List().Get(i), mine, func(s string) { v.List().Set(i, protoreflect.ValueOfString(s)) })
			}
		default:
			o.value(fd, v, mine, func(s string) { m.Set(fd, protoreflect.ValueOfString(s)) })
		}
		return true
	})
}

// value looks at one value of a field, which a list or a map may hold many of.
func (o *outside) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, mine bool, set func(string)) {
	switch {
	case fd.Message() != nil:
		o.message(v.Message())
	case fd.Kind() == protoreflect.StringKind && !mine:
		o.add(v.String(), set)
	}
}

func (o *outside) entries(fd protoreflect.FieldDescriptor, m protoreflect.Map, mine bool) {
	var named *keys
	if !mine && fd.MapKey().Kind() == protoreflect.StringKind {
		named = &keys{into: m, values: map[string]protoreflect.Value{}, renamed: map[string]string{}}
		o.maps = append(o.maps, named)
	}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		set := func(s string) { m.Set(k, protoreflect.ValueOfString(s)) }
		if named != nil {
			key := k.String()
			named.values[key], named.renamed[key] = v, key
			o.add(key, func(s string) { named.renamed[key] = s })
			set = func(s string) { named.values[key] = protoreflect.ValueOfString(s) }
		}
		o.value(fd.MapValue(), v, mine, set)
		return true
	})
}

func (o *outside) add(text string, set func(string)) {
	if text != "" {
		o.open = append(o.open, hole{text: text, set: set})
	}
}

// take returns the next texts that go into one request, beside others.
func (o *outside) take(beside []string) []hole {
	size := 0
	for _, text := range beside {
		size += len(text)
	}
	for i := range o.open {
		o.open[i].text = atMost(o.open[i].text)
		if size += len(o.open[i].text); i == tokeniseTexts-len(beside) || size > tokeniseBatch {
			batch := o.open[:i]
			o.open = o.open[i:]
			return batch
		}
	}
	batch := o.open
	o.open = nil
	return batch
}

// atMost is a text as a request may hold it. One that is longer is cut: what the vault does not look at does not leave.
func atMost(text string) string {
	if len(text) <= tokeniseBytes {
		return text
	}
	return strings.ToValidUTF8(text[:tokeniseBytes], "")
}

// complete gives the maps their new keys. Two keys that became one are an error: neither value may be dropped.
func (o *outside) complete() error {
	for _, m := range o.maps {
		if !m.apply() {
			return errors.New("two keys of a map became one")
		}
	}
	return nil
}

// clearKeys empties the maps whose keys are from outside.
func (o *outside) clearKeys() {
	for _, m := range o.maps {
		for key := range m.values {
			m.into.Clear(protoreflect.ValueOfString(key).MapKey())
		}
	}
}

func (m *keys) apply() bool {
	for key := range m.values {
		m.into.Clear(protoreflect.ValueOfString(key).MapKey())
	}
	for key, v := range m.values {
		k := protoreflect.ValueOfString(m.renamed[key]).MapKey()
		if m.into.Has(k) {
			return false
		}
		m.into.Set(k, v)
	}
	return true
}
