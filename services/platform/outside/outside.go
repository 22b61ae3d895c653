// Package outside finds the text in a message that a program or a stranger wrote, and puts other text in its place. What in an answer
// is ours the contract says; everything else is from outside.
//
// It runs in every sink. The text is hostile: it is cleaned, bounded and replaced here, never read. It is cleaned before anybody looks
// for values in it: characters that nobody sees would part one, and vanish on its way to who is shown it.
package outside

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/reference"
)

// What one request to the vault may hold, by its contract, and how much of that is asked for at once: a message has a bound of
// its own. Texts, bytes of one text, and bytes of all: room for the longest text and what lies around it. A longer text leaves without its end.
const (
	MaxTexts = 256
	MaxText  = 1 << 20
	MaxBatch = 2 << 20
)

// maxValue is how long a value is of which a text that is cut tells no part, in bytes.
const maxValue = 4 << 10

// Texts are the texts of one message that are from outside. Not safe for concurrent use.
type Texts struct {
	open []Text
	// maps are those whose keys are such text.
	maps []*keys
}

// Text is one text, and where its replacement goes.
type Text struct {
	Text string
	Set  func(string)
	// withhold puts another in its place.
	withhold func(string)
}

// Find finds the texts of a message that are from outside, however deep, in strings and in the keys of maps. What is found is replaced
// in that message.
func Find(m protoreflect.Message) *Texts {
	o := &Texts{}
	o.message(m)
	return o
}

// keys is a map whose keys are from outside: it is filled anew when all of them are known.
type keys struct {
	into   protoreflect.Map
	values map[string]protoreflect.Value
	// renamed is the new key of each.
	renamed map[string]string
}

func (o *Texts) message(m protoreflect.Message) {
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
func (o *Texts) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, mine bool, set func(string)) {
	switch {
	case fd.Message() != nil:
		o.message(v.Message())
	case fd.Kind() == protoreflect.StringKind && !mine:
		o.add(v.String(), set)
	}
}

func (o *Texts) entries(fd protoreflect.FieldDescriptor, m protoreflect.Map, mine bool) {
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

// add adds a text, whole: in parts, a value that lies where two of them meet would be found in neither. Of a text that is longer than may
// leave, the end is held back, since a value may begin in it whose rest is not looked at.
func (o *Texts) add(text string, set func(string)) {
	if cleaned := clean.Block(text, clean.Whole); cleaned != text {
		text = cleaned
		set(text)
	}
	switch {
	case text == "":
	case len(text) <= MaxText:
		o.open = append(o.open, Text{Text: text, Set: set, withhold: set})
	default:
		o.open = append(o.open, Text{Text: AtMost(text), withhold: set, Set: func(s string) {
			set(s[:reference.HoldBack(s, maxValue)] + "…")
		}})
	}
}

// Take returns the next texts that go into one request, beside others; none when all were taken.
func (o *Texts) Take(beside []string) []Text {
	size, n := 0, 0
	for _, text := range beside {
		size += len(text)
	}
	for n < len(o.open) {
		size += len(o.open[n].Text)
		if n > 0 && (n == MaxTexts-len(beside) || size > MaxBatch) {
			break
		}
		n++
	}
	batch := o.open[:n]
	o.open = o.open[n:]
	return batch
}

// AtMost is a text as a request may hold it. One that is longer is cut: what the vault does not look at does not leave.
func AtMost(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return strings.ToValidUTF8(text[:MaxText], "")
}

// Complete gives the maps their new keys. Two keys that became one are an error: neither value may be dropped.
func (o *Texts) Complete() error {
	for _, m := range o.maps {
		if !m.apply() {
			return errors.New("two keys of a map became one")
		}
	}
	return nil
}

// Withhold puts one text in the place of all that were not taken, and empties the maps whose keys are from outside.
func (o *Texts) Withhold(with string) {
	for _, text := range o.open {
		text.withhold(with)
	}
	for _, m := range o.maps {
		m.clear()
	}
}

// clear takes every key out.
func (m *keys) clear() {
	for key := range m.values {
		m.into.Clear(protoreflect.ValueOfString(key).MapKey())
	}
}

func (m *keys) apply() bool {
	m.clear()
	for key, v := range m.values {
		k := protoreflect.ValueOfString(m.renamed[key]).MapKey()
		if m.into.Has(k) {
			return false
		}
		m.into.Set(k, v)
	}
	return true
}
