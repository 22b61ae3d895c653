package downstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/injection"
	"durward.internal/services/platform/pattern"
)

// Bounds of what a server says of itself, in characters. Longer texts are cut, and the human is told.
const (
	maxTools        = 128
	maxTitle        = 120
	maxDescription  = 4096
	maxInstructions = 4096
	maxProse        = 2000
)

// Listed is one tool, or what stands beside the tools, as a server listed it: hostile.
type Listed struct {
	Kind                       Kind `json:",omitempty"`
	Name, Title, Description   string
	Input, Output, Annotations json.RawMessage
	// Problem is why its schemas cannot be compiled, as the program says that asked the server; "" where they can be. A listing that
	// hides it wins nothing: such a tool is in force nowhere.
	Problem string `json:",omitempty"`
}

// Finding is what a human should know of a server before accepting it: a sentence, of a tool or of the server as a whole ("").
type Finding struct {
	Tool, Text string
	// Refused: the tool is left out. Phrase: it holds a phrase by which people are known to take agents over.
	Refused, Phrase bool
}

// Pin is Clean for all that a server said: what a human may accept. Tiers, roles, entry and program are the caller's to fill in.
func Pin(server, instructions string, listed []Listed) (Pinned, []Finding) {
	c := cleaner{}
	p := Pinned{Entry: Entry{ID: server}, Instructions: c.prose("its instructions", instructions, maxInstructions)}
	tools, findings := Clean(server, listed)
	for i := range tools {
		tools[i].Instructions = p.Instructions
	}
	p.Tools = tools
	return p, append(c.findings, findings...)
}

// Clean makes of what a server listed what can be pinned, sorted by name, and says what it had to change or leave out.
func Clean(server string, listed []Listed) ([]Tool, []Finding) {
	c := cleaner{}
	if len(listed) > maxTools {
		c.findings = append(c.findings, Finding{Text: fmt.Sprintf("it lists %d tools, and the first %d are looked at", len(listed), maxTools), Refused: true})
		listed = listed[:maxTools]
	}
	alike := map[string][]string{}
	for _, l := range listed {
		alike[skeleton(l.PinnedName())] = append(alike[skeleton(l.PinnedName())], l.Name)
	}
	var out []Tool
	for _, l := range listed {
		// No name is shown that was not checked.
		c.tool = clean.Visible(clean.Line(l.PinnedName(), MaxToolName))
		t, err := c.clean(server, l)
		if names := alike[skeleton(l.PinnedName())]; err == nil && len(names) > 1 {
			err = fmt.Errorf("its name looks like that of another of its tools: %s", clean.Visible(strings.Join(names, ", ")))
		}
		if err != nil {
			c.findings = append(c.findings, Finding{Tool: c.tool, Text: clean.Line(err.Error(), 500), Refused: true})
			continue
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
	return out, c.findings
}

// screen is built when it is first used.
var screen = injection.New()

type cleaner struct {
	tool     string
	findings []Finding
}

func (c *cleaner) find(format string, args ...any) {
	c.findings = append(c.findings, Finding{Tool: c.tool, Text: fmt.Sprintf(format, args...)})
}

func (c *cleaner) clean(server string, l Listed) (t Tool, err error) {
	switch l.Kind {
	case KindAnswer:
		return answerer(), nil
	case KindResources:
		return reader(), nil
	case KindPrompt:
		t.Tier = optionsv1.Tier_TIER_READ // it is for text; a human's rule can have it ask
	case KindTool:
	default:
		return t, errors.New("it is of a kind that is not known")
	}
	if err := checkName(server, l.Name, l.PinnedName()); err != nil {
		return t, err
	}
	t = Tool{Tier: t.Tier, Name: l.PinnedName(), Title: c.line("its title", l.Title, maxTitle), Description: c.prose("its description", l.Description, maxDescription)}
	if none(l.Input) {
		l.Input = json.RawMessage(`{"type":"object"}`)
	}
	if t.Input, err = c.schema(l.Input); err != nil {
		return t, err
	}
	if !none(l.Output) {
		if t.Output, err = c.schema(l.Output); err != nil {
			return t, fmt.Errorf("its results: %w", err)
		}
	}
	if l.Problem != "" {
		return t, errors.New(l.Problem)
	}
	t.Annotations, err = c.annotations(l.Annotations)
	return t, err
}

func none(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// line and prose clean a text for people and models, and say what was wrong with it.
func (c *cleaner) line(what, text string, limit int) string {
	return c.said(what, text, clean.Line(text, limit))
}

func (c *cleaner) prose(what, text string, limit int) string {
	return c.said(what, text, strings.TrimSpace(clean.Block(text, limit)))
}

func (c *cleaner) said(what, before, after string) string {
	switch plain := strings.TrimSpace(unjoined(strings.ReplaceAll(before, "\r\n", "\n"))); {
	case plain == after:
	case strings.HasSuffix(after, "…") && !strings.HasSuffix(plain, "…"):
		c.find("%s is too long, and is cut", what)
	case strings.Join(strings.Fields(plain), " ") != strings.Join(strings.Fields(after), " "):
		c.find("%s held characters that hide or command, which are taken out", what)
	}
	c.phrase(what, before)
	return after
}

func (c *cleaner) phrase(what, text string) {
	if class := screen.Text(text); class != "" {
		c.findings = append(c.findings, Finding{Tool: c.tool, Phrase: true, Text: fmt.Sprintf("%s holds a phrase by which people take agents over (%s)", what, class)})
	}
}

// schema is the RFC 8785 form of a schema whose prose is cleaned. Other hostile text in it is a reason to refuse: it would mean something
// else without.
func (c *cleaner) schema(raw json.RawMessage) (json.RawMessage, error) {
	if err := LintSchema(raw); err != nil {
		return nil, err
	}
	v, err := decode(raw)
	if root, is := v.(map[string]any); is {
		delete(root, "$id") // its name, which nothing within may refer to
	}
	if err == nil {
		v, err = c.texts(v, "")
	}
	if err != nil {
		return nil, err
	}
	return canonical.Marshal(v)
}

// prosaic are the keywords that are read by people and models alone.
var prosaic = []string{"title", "description", "$comment"}

func (c *cleaner) texts(v any, at string) (any, error) {
	var err error
	switch v := v.(type) {
	case string:
		if hidden(v) {
			return nil, fmt.Errorf("its schema holds characters that hide or command, at %s", clean.Line(at, 200))
		}
		c.phrase("its schema at "+clean.Line(at, 200), v)
	case []any:
		for i := range v {
			if v[i], err = c.texts(v[i], fmt.Sprintf("%s/%d", at, i)); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			where := member(at, key)
			if hidden(key) {
				return nil, fmt.Errorf("its schema names something with characters that hide or command, at %s", clean.Line(where, 200))
			}
			c.phrase("its schema at "+clean.Line(where, 200), key)
			if text, isText := v[key].(string); isText && key == "pattern" && Unmatched(text) || strings.HasSuffix(at, "/patternProperties") && Unmatched(key) {
				c.find("its schema at %s holds a regular expression that is not checked here, but by the server alone", clean.Line(where, 200))
			}
			if text, isText := v[key].(string); isText && slices.Contains(prosaic, key) {
				v[key] = c.prose("its schema at "+clean.Line(where, 200), text, maxProse)
			} else if v[key], err = c.texts(v[key], where); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// emoji is a key's cap, or symbols of which each may have a skin's colour and the one character that has it shown as a picture, with a joiner
// between two of them: these hide nothing.
var emoji = pattern.New(`[0-9#*]\x{FE0F}\x{20E3}|` + symbol + `(?:\x{200D}` + symbol + `)*`)

const symbol = `[\p{So}\x{2190}-\x{21FF}\x{203C}\x{2049}\x{2139}][\x{1F3FB}-\x{1F3FF}]?\x{FE0F}?`

// unjoined is a text without what makes pictures of its symbols.
func unjoined(s string) string {
	return emoji().ReplaceAllStringFunc(s, strings.NewReplacer("\ufe0f", "", "\u200d", "").Replace)
}

// hidden reports whether a text holds a character that cannot be seen as what it is.
func hidden(s string) bool {
	s = strings.NewReplacer("\n", "", "\t", "", `\`, "").Replace(unjoined(s))
	return clean.Visible(s) != s
}

// annotations are rebuilt from what the protocol knows.
func (c *cleaner) annotations(raw json.RawMessage) (json.RawMessage, error) {
	if none(raw) {
		return nil, nil
	}
	var hints struct {
		Title       string `json:"title,omitempty"`
		ReadOnly    *bool  `json:"readOnlyHint,omitempty"`
		Destructive *bool  `json:"destructiveHint,omitempty"`
		Idempotent  *bool  `json:"idempotentHint,omitempty"`
		OpenWorld   *bool  `json:"openWorldHint,omitempty"`
	}
	if err := canonical.Strict(raw); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &hints); err != nil {
		return nil, errors.New("its annotations are none")
	}
	hints.Title = c.line("its annotations' title", hints.Title, maxTitle)
	return canonical.Marshal(hints)
}

// ListRequest asks egress' program to run a server once and list its tools, for a human who decides on it.
type ListRequest struct {
	Entry         Entry
	ProgramDigest [32]byte
	// Packages is the folder in which packages of npm are installed.
	Packages string
	// Own are folders and files of Durward's that no server gets.
	Own []string
}

// Listing is what a server says of itself: hostile.
type Listing struct {
	Name, Version, Instructions string
	Tools                       []Listed
}

// ListAnswer is a listing, or why there is none: a sentence.
type ListAnswer struct {
	Listing *Listing `json:",omitempty"`
	Problem string   `json:",omitempty"`
}
