package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"durward.internal/services/platform/clean"
)

// Bounds of a file that strangers wrote. Aliases are followed, not copied, so a bomb of them is as small in memory as it is on disk.
const (
	maxBytes   = 1 << 20
	maxDepth   = 32
	maxNodes   = 100_000
	maxAliases = 1_000
	// maxMerged bounds the keys that merges (<<) copy.
	maxMerged = 10_000
	maxText   = 64 << 10
	// maxKeys bounds the keys of an entry.
	maxKeys = 256
)

// kind is what a value is.
type kind int

const (
	null kind = iota
	text
	scalar // a number or a bool
	sequence
	mapping
)

// value is a decoded YAML value. The accessors answer the zero value for what is missing or of another kind, so that a strange file
// reads as one that says nothing.
type value struct {
	kind kind
	line int
	text string
	list []*value
	// keys are in the file's order.
	keys   []string
	fields map[string]*value
}

// readFile reads a regular file of at most 1 MB. A named pipe does not hold it up.
func readFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened", clean.Visible(name))
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", clean.Visible(name))
	} else if info.Size() > maxBytes {
		return nil, fmt.Errorf("%s is larger than 1 MB", clean.Visible(name))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read", clean.Visible(name))
	}
	return data, nil
}

// decode reads one YAML document within the bounds. name stands for the file in errors.
func decode(name string, data []byte) (*value, error) {
	name = clean.Line(name, 200)
	switch {
	case len(data) > maxBytes:
		return nil, fmt.Errorf("%s is larger than 1 MB", name)
	case !utf8.Valid(data):
		return nil, fmt.Errorf("%s is not UTF-8 text", name)
	}
	if line := deep(data); line > 0 {
		return nil, fmt.Errorf("%s:%d: nested deeper than %d levels", name, line, maxDepth)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var root, second yaml.Node
	if err := safely(func() error { return dec.Decode(&root) }); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s is empty", name)
		}
		return nil, fmt.Errorf("%s is not YAML: %s", name, clean.Line(strings.TrimPrefix(err.Error(), "yaml: "), 200))
	}
	if err := safely(func() error { return dec.Decode(&second) }); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s holds more than one document", name)
	}
	d := decoder{done: map[*yaml.Node]*value{}}
	v, err := d.value(&root, 0)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	return v, nil
}

// safely turns a panic of the YAML library into an error.
func safely(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("it cannot be read")
		}
	}()
	return f()
}

// deep returns the line at which brackets, or dashes and question marks on one line, nest far deeper than anything that is
// accepted, before the recursive parser sees them; 0 where none does. Those in texts count too; the exact bound is checked on the tree.
func deep(data []byte) int {
	line, brackets, marks := 1, 0, 0
	for i, c := range data {
		switch c {
		case '\n':
			line, marks = line+1, 0
		case '[', '{':
			brackets++
		case ']', '}':
			brackets = max(0, brackets-1)
		case '-', '?':
			if i+1 < len(data) && (data[i+1] == ' ' || data[i+1] == '\t') {
				marks++
			}
		}
		if brackets > 8*maxDepth || marks > 8*maxDepth {
			return line
		}
	}
	return 0
}

type decoder struct {
	// done holds what was made of each node; nil while it is being made, which is how a circle shows.
	done                   map[*yaml.Node]*value
	nodes, aliases, merged int
}

func at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%d: %s", n.Line, fmt.Sprintf(format, args...))
}

func (d *decoder) value(n *yaml.Node, depth int) (*value, error) {
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

func (d *decoder) fresh(n *yaml.Node, depth int) (*value, error) {
	v := &value{line: n.Line}
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
			v.kind, v.text = text, n.Value
		case "!!bool", "!!int", "!!float":
			v.kind, v.text = scalar, n.Value
		default:
			return nil, at(n, "tags are not accepted")
		}
		return v, nil
	case yaml.SequenceNode:
		v.kind = sequence
		for _, c := range n.Content {
			item, err := d.value(c, depth+1)
			if err != nil {
				return nil, err
			}
			v.list = append(v.list, item)
		}
		return v, nil
	case yaml.MappingNode:
		v.kind, v.fields = mapping, map[string]*value{}
		return v, d.mapping(n, v, depth)
	}
	return nil, at(n, "something that is no value")
}

func (d *decoder) mapping(n *yaml.Node, v *value, depth int) error {
	var merges []*value
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
			if item.kind == sequence {
				merges = append(merges, item.list...)
			} else {
				merges = append(merges, item)
			}
			continue
		}
		if _, twice := v.fields[key.Value]; twice {
			return at(key, "the key %q stands here twice", clean.Line(key.Value, 64))
		}
		v.keys = append(v.keys, key.Value)
		v.fields[key.Value] = item
	}
	for _, from := range merges {
		if from.kind != mapping {
			return at(n, "<< merges what is no mapping")
		}
		for _, key := range from.keys {
			if d.merged++; d.merged > maxMerged {
				return at(n, "merges copy more than %d keys", maxMerged)
			}
			if _, own := v.fields[key]; !own {
				v.keys = append(v.keys, key)
				v.fields[key] = from.fields[key]
			}
		}
	}
	return nil
}

// nothing is what a missing value is.
var nothing = &value{}

// get returns the value of a key.
func (v *value) get(key string) *value {
	if v == nil || v.fields[key] == nil {
		return nothing
	}
	return v.fields[key]
}

// at follows keys.
func (v *value) at(keys ...string) *value {
	for _, key := range keys {
		v = v.get(key)
	}
	return v
}

// size is how many elements a list or a mapping has.
func (v *value) size() int { return max(len(v.list), len(v.keys)) }

// bound is how long a list of an entry may be.
type bound struct {
	keys []string
	most int
}

// over says which list of an entry is longer than it may be, or "".
func (v *value) over(bounds []bound) string {
	if v.size() > maxKeys {
		return fmt.Sprintf("it has more than %d keys", maxKeys)
	}
	for _, b := range bounds {
		if v.at(b.keys...).size() > b.most {
			return fmt.Sprintf("%s has more than %d entries", b.keys[len(b.keys)-1], b.most)
		}
	}
	return ""
}

// isSet reports whether there is something.
func (v *value) isSet() bool { return v.kind != null }

// str is a text, or a number or bool as it was written.
func (v *value) str() string { return v.text }

// number is a count, and whether it is one.
func (v *value) number() (uint32, bool) {
	n, err := strconv.ParseUint(strings.ReplaceAll(v.text, "_", ""), 10, 32)
	return uint32(n), err == nil && v.kind != null
}

// is reports whether a bool is true.
func (v *value) is() bool { return v.kind == scalar && strings.EqualFold(v.text, "true") }

// isFalse reports whether a bool is false.
func (v *value) isFalse() bool { return v.kind == scalar && strings.EqualFold(v.text, "false") }

// strings are the texts of a list, or a single text as a list of one.
func (v *value) strings() []string {
	if v.kind == text || v.kind == scalar {
		return []string{v.text}
	}
	var out []string
	for _, item := range v.list {
		if item.kind == text || item.kind == scalar {
			out = append(out, item.text)
		}
	}
	return out
}

// pairs are KEY=VALUE, of a mapping or of a list of such texts. A key without a value has none: bare.
func (v *value) pairs() (out []pair) {
	if v.kind == mapping {
		for _, key := range v.keys {
			item := v.fields[key]
			out = append(out, pair{key, item.text, item.kind == null})
		}
		return out
	}
	for _, one := range v.strings() {
		key, content, ok := strings.Cut(one, "=")
		out = append(out, pair{key, content, !ok})
	}
	return out
}

type pair struct {
	key, value string
	bare       bool
}
