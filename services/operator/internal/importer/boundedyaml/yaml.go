// Package boundedyaml decodes YAML that strangers wrote. It runs in the operator's process and trusts nothing: a file is bounded before
// and while it is decoded, aliases are followed and not copied, a document has one meaning or none.
package boundedyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"durward.internal/services/platform/clean"
)

// Bounds of a file that strangers wrote. Aliases are followed, not copied, so a bomb of them is as small in memory as it is on disk.
const (
	// MaxBytes bounds the file.
	MaxBytes   = 1 << 20
	maxDepth   = 32
	maxNodes   = 100_000
	maxAliases = 1_000
	// maxMerged bounds the keys that merges (<<) copy.
	maxMerged = 10_000
	maxText   = 64 << 10
	// maxKeys bounds the keys of an entry.
	maxKeys = 256
)

// Kind is what a value is.
type Kind int

// The kinds that are looked at; the zero Kind is what is missing or null.
const (
	null Kind = iota
	Text
	Scalar // a number or a bool
	Sequence
	Mapping
)

// Value is a decoded YAML value. The accessors answer the zero value for what is missing or of another kind, so that a strange file
// reads as one that says nothing.
type Value struct {
	Kind Kind
	// Text is a text's, or a number's or bool's as it was written.
	Text string
	List []*Value
	// Keys are in the file's order.
	Keys   []string
	Fields map[string]*Value
}

// ReadFile reads a regular file of at most 1 MB. A named pipe does not hold it up.
func ReadFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if why, ok := errors.AsType[*fs.PathError](err); ok {
			err = why.Err // without the name, which stands before it
		}
		return nil, fmt.Errorf("%s cannot be opened: %w", clean.Visible(name), err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", clean.Visible(name))
	} else if info.Size() > MaxBytes {
		return nil, fmt.Errorf("%s is larger than 1 MB", clean.Visible(name))
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read", clean.Visible(name))
	}
	return data, nil
}

// Read reads and decodes a file, and says which folder it lies in.
func Read(file string) (root *Value, folder string, err error) {
	data, err := ReadFile(file)
	if err != nil {
		return nil, "", err
	}
	if folder, err = filepath.Abs(filepath.Dir(file)); err != nil {
		return nil, "", fmt.Errorf("the folder of %s cannot be told", clean.Visible(file))
	}
	root, err = Decode(filepath.Base(file), data)
	return root, folder, err
}

// Decode reads one YAML document within the bounds. name stands for the file in errors.
func Decode(name string, data []byte) (*Value, error) {
	name = clean.Line(name, 200)
	switch {
	case len(data) > MaxBytes:
		return nil, fmt.Errorf("%s is larger than 1 MB", name)
	case !utf8.Valid(data):
		return nil, fmt.Errorf("%s is not UTF-8 text", name)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var root, second yaml.Node
	if err := safely(func() error { return dec.Decode(&root) }); err != nil {
		switch {
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s is empty", name)
		case bytes.Contains(data, []byte("{{")):
			return nil, fmt.Errorf("%s: %w", name, ErrTemplate)
		case strings.Contains(err.Error(), "exceeded max depth"): // the library's own, far above ours
			return nil, fmt.Errorf("%s: nested deeper than %d levels", name, maxDepth)
		}
		return nil, fmt.Errorf("%s is not YAML: %s", name, clean.Line(strings.TrimPrefix(err.Error(), "yaml: "), 200))
	}
	if err := safely(func() error { return dec.Decode(&second) }); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s holds more than one document", name)
	}
	d := decoder{done: map[*yaml.Node]*Value{}}
	v, err := d.value(&root, 0)
	if err != nil && bytes.Contains(data, []byte("{{")) {
		return nil, fmt.Errorf("%s: %w", name, ErrTemplate)
	}
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	return v, nil
}

// ErrTemplate means that a text is not what it is made from.
var ErrTemplate = errors.New("it is a template ({{ … }}): import what is made from it")

// safely turns a panic of the YAML library into an error.
func safely(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("it cannot be read")
		}
	}()
	return f()
}

type decoder struct {
	// done holds what was made of each node; nil while it is being made, which is how a circle shows.
	done                   map[*yaml.Node]*Value
	nodes, aliases, merged int
}

func at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%d: %s", n.Line, fmt.Sprintf(format, args...))
}

func (d *decoder) value(n *yaml.Node, depth int) (*Value, error) {
	if n.Kind == yaml.AliasNode {
		if d.aliases++; d.aliases > maxAliases {
			return nil, at(n, "more than %d aliases", maxAliases)
		}
		n = n.Alias
	}
	if v, begun := d.done[n]; begun {
		if v == nil {
			return nil, at(n, "a value holds itself")
		}
		return v, nil
	}
	if depth > maxDepth {
		return nil, at(n, "nested deeper than %d levels", maxDepth)
	}
	if d.nodes++; d.nodes > maxNodes {
		return nil, at(n, "more than %d values", maxNodes)
	}
	d.done[n] = nil
	v, err := d.fresh(n, depth)
	if err != nil {
		return nil, err
	}
	d.done[n] = v
	return v, nil
}

func (d *decoder) fresh(n *yaml.Node, depth int) (*Value, error) {
	v := &Value{}
	if tag := n.ShortTag(); n.Kind == yaml.SequenceNode && tag != "!!seq" || n.Kind == yaml.MappingNode && tag != "!!map" {
		return nil, at(n, "tags are not accepted")
	}
	switch n.Kind {
	case yaml.DocumentNode:
		if len(n.Content) != 1 {
			return v, nil
		}
		return d.value(n.Content[0], depth)
	case yaml.ScalarNode:
		if len(n.Value) > maxText {
			return nil, at(n, "a text of more than 64 kB")
		}
		switch n.ShortTag() {
		case "!!null":
		case "!!str", "!!timestamp":
			v.Kind, v.Text = Text, n.Value
		case "!!bool", "!!int", "!!float":
			v.Kind, v.Text = Scalar, n.Value
		default:
			return nil, at(n, "tags are not accepted")
		}
		return v, nil
	case yaml.SequenceNode:
		v.Kind = Sequence
		for _, c := range n.Content {
			item, err := d.value(c, depth+1)
			if err != nil {
				return nil, err
			}
			v.List = append(v.List, item)
		}
		return v, nil
	case yaml.MappingNode:
		v.Kind, v.Fields = Mapping, map[string]*Value{}
		return v, d.mapping(n, v, depth)
	}
	return nil, at(n, "something that is no value")
}

func (d *decoder) mapping(n *yaml.Node, v *Value, depth int) error {
	var merges []*Value
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, content := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return at(key, "a key that is not a plain name")
		}
		item, err := d.value(content, depth+1)
		if err != nil {
			return err
		}
		if key.ShortTag() == "!!merge" {
			if item.Kind == Sequence {
				merges = append(merges, item.List...)
			} else {
				merges = append(merges, item)
			}
			continue
		}
		if _, twice := v.Fields[key.Value]; twice {
			return at(key, "the key %q stands here twice", clean.Line(key.Value, 64))
		}
		v.Keys = append(v.Keys, key.Value)
		v.Fields[key.Value] = item
	}
	for _, from := range merges {
		if from.Kind != Mapping {
			return at(n, "<< merges what is no mapping")
		}
		for _, key := range from.Keys {
			if d.merged++; d.merged > maxMerged {
				return at(n, "merges copy more than %d keys", maxMerged)
			}
			if _, own := v.Fields[key]; !own {
				v.Keys = append(v.Keys, key)
				v.Fields[key] = from.Fields[key]
			}
		}
	}
	return nil
}

// Nothing is what a missing value is.
var Nothing = &Value{}

// Get returns the value of a key.
func (v *Value) Get(key string) *Value {
	if v == nil || v.Fields[key] == nil {
		return Nothing
	}
	return v.Fields[key]
}

// At follows keys.
func (v *Value) At(keys ...string) *Value {
	for _, key := range keys {
		v = v.Get(key)
	}
	return v
}

// Size is how many elements a list or a mapping has.
func (v *Value) Size() int { return max(len(v.List), len(v.Keys)) }

// Bound is how long a list of an entry may be.
type Bound struct {
	keys []string
	most int
}

// Most bounds the list that the keys lead to.
func Most(n int, keys ...string) Bound { return Bound{keys: keys, most: n} }

// Over says which list of an entry is longer than it may be, or "".
func (v *Value) Over(bounds []Bound) string {
	if v.Size() > maxKeys {
		return fmt.Sprintf("it has more than %d keys", maxKeys)
	}
	for _, b := range bounds {
		if v.At(b.keys...).Size() > b.most {
			return fmt.Sprintf("%s has more than %d entries", b.keys[len(b.keys)-1], b.most)
		}
	}
	return ""
}

// IsSet reports whether there is something.
func (v *Value) IsSet() bool { return v.Kind != null }

// Str is a text, or a number or bool as it was written.
func (v *Value) Str() string { return v.Text }

// Number is a count, and whether it is one.
func (v *Value) Number() (uint32, bool) {
	n, err := strconv.ParseUint(strings.ReplaceAll(v.Text, "_", ""), 10, 32)
	return uint32(n), err == nil && v.Kind != null
}

// Is reports whether a bool is true.
func (v *Value) Is() bool { return v.Kind == Scalar && strings.EqualFold(v.Text, "true") }

// IsFalse reports whether a bool is false.
func (v *Value) IsFalse() bool { return v.Kind == Scalar && strings.EqualFold(v.Text, "false") }

// Strings are the texts of a list, or a single text as a list of one.
func (v *Value) Strings() []string {
	if v.IsText() {
		return []string{v.Text}
	}
	var out []string
	for _, item := range v.List {
		if item.IsText() {
			out = append(out, item.Text)
		}
	}
	return out
}

// Pairs are KEY=VALUE, of a mapping or of a list of such texts. A key without a value has none: bare.
func (v *Value) Pairs() (out []Pair) {
	if v.Kind == Mapping {
		for _, key := range v.Keys {
			item := v.Fields[key]
			out = append(out, Pair{key, item.Text, item.Kind == null})
		}
		return out
	}
	for _, one := range v.Strings() {
		key, content, ok := strings.Cut(one, "=")
		out = append(out, Pair{key, content, !ok})
	}
	return out
}

// Pair is KEY=VALUE.
type Pair struct {
	Key, Value string
	Bare       bool
}

// IsText reports whether it is a text, a number or a bool.
func (v *Value) IsText() bool { return v.Kind == Text || v.Kind == Scalar }

// Plain is a text; nothing where it is empty.
func Plain(text string) *Value {
	if text == "" {
		return Nothing
	}
	return &Value{Kind: Text, Text: text}
}

// Make makes a mapping of keys and what they hold in turn: a text or a list of texts. What is empty is left out.
func Make(pairs ...any) *Value {
	v := &Value{Kind: Mapping, Fields: map[string]*Value{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		key, _ := pairs[i].(string)
		switch what := pairs[i+1].(type) {
		case string:
			v.Set(key, what)
		case []string:
			for _, one := range what {
				v.Add(key, &Value{Kind: Text, Text: one})
			}
		}
	}
	return v
}

// Set sets a key of a mapping to a text, unless it is empty.
func (v *Value) Set(key, text string) {
	if text != "" && v.Fields[key] == nil {
		v.Keys = append(v.Keys, key)
		v.Fields[key] = Plain(text)
	}
}

// Add adds an item to the list under a key.
func (v *Value) Add(key string, item *Value) {
	if v.Fields[key] == nil {
		v.Keys = append(v.Keys, key)
		v.Fields[key] = &Value{Kind: Sequence}
	}
	v.Fields[key].List = append(v.Fields[key].List, item)
}

// With is a mapping with another text under a key.
func (v *Value) With(key, text string) *Value {
	out := &Value{Kind: v.Kind, Keys: v.Keys, Fields: maps.Clone(v.Fields)}
	delete(out.Fields, key)
	out.Set(key, text)
	return out
}
