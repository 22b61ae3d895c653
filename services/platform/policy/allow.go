package policy

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cedar-policy/cedar-go"
	public "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
)

// Bounds of what Allow writes.
const (
	maxAllowedArguments = 16
	maxAllowedValues    = 200
	maxAllowedValue     = 256
)

// Allow writes the rule by which a client, with all its agents, may call a tool without asking: with any arguments, or with those
// that have one of the values that are given, as text. The note stands above it as a comment. Equal input gives equal text, which
// ends in a newline and can be appended to a policy file; whatever the input, it is one rule and about nothing else. It ends at
// until; the zero time: never.
func Allow(client string, tool contract.Tool, arguments map[string][]string, note string, until time.Time) (id, text string, err error) {
	if !clientPattern().MatchString(client) {
		return "", "", fmt.Errorf("%q is no client's id", clean.Line(client, 80))
	}
	name := ActionName(tool)
	if _, native := contract.Native(name); !native && !foreignTool().MatchString(name) {
		return "", "", fmt.Errorf("there is no tool %s%s", clean.Line(name, 80), meant(name))
	}
	if tool.Tagged("desktop") {
		return "", "", errors.New("desktop control asks a human always; a rule would not change that")
	}
	if len(arguments) > maxAllowedArguments {
		return "", "", fmt.Errorf("more than %d arguments", maxAllowedArguments)
	}
	p := ast.Permit().
		PrincipalIn(types.NewEntityUID(clientType, types.String(client))).
		ActionEq(types.NewEntityUID(actionType, groupRun+":"+types.String(name)))
	means := []string{}
	for _, argument := range slices.Sorted(maps.Keys(arguments)) {
		condition, meaning, err := pinned(tool, argument, arguments[argument])
		if err != nil {
			return "", "", err
		}
		p = p.When(condition)
		means = append(means, meaning)
	}
	if !until.IsZero() {
		p = p.When(ast.Context().Access("time").Access("unix").LessThan(ast.Long(until.Unix())))
		means = append(means, "until "+until.UTC().Format("2006-01-02 15:04 MST"))
	}
	digest := canonical.Digest(unnamed(p))
	id = fmt.Sprintf("allow/%s/%s/%s", client, name, hex.EncodeToString(digest[:4]))
	if !idPattern().MatchString(id) {
		id = fmt.Sprintf("allow/%s/%s", client, hex.EncodeToString(digest[:8]))
	}
	text = layOut(p, client, name, id, note, means)
	return id, text, same(p, id, text)
}

// integer is a whole number as Cedar writes it.
var integer = pattern.New(`^(0|-?[1-9][0-9]{0,15})$`)

// pinned is the condition that an argument has one of the values.
func pinned(tool contract.Tool, argument string, values []string) (ast.Node, string, error) {
	shown := clean.Line(argument, 64)
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, ok := properties[argument].(map[string]any)
	if !ok {
		return ast.Node{}, "", fmt.Errorf("%s has no argument %s", tool.Name, shown)
	}
	if len(values) == 0 || len(values) > maxAllowedValues {
		return ast.Node{}, "", fmt.Errorf("%s takes 1 to %d values", shown, maxAllowedValues)
	}
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	nodes := make([]ast.Node, len(values))
	words := make([]string, len(values))
	for i, value := range values {
		var err error
		if nodes[i], err = literal(property, value); err != nil {
			return ast.Node{}, "", fmt.Errorf("%s: %w", shown, err)
		}
		words[i] = clean.Line(value, 64)
	}
	given := ast.Context().Access("arguments").Access(types.String(argument))
	condition := ast.Set(nodes...).Contains(given)
	if len(nodes) == 1 {
		condition = given.Equal(nodes[0])
	}
	if !slices.Contains(required(tool), argument) {
		condition = ast.Context().Access("arguments").Has(types.String(argument)).And(condition)
	}
	return condition, shown + " " + strings.Join(words, " or "), nil
}

// literal is a value as the argument's schema has it.
func literal(property map[string]any, value string) (ast.Node, error) {
	if len(value) > maxAllowedValue {
		return ast.Node{}, fmt.Errorf("a value of more than %d bytes", maxAllowedValue)
	}
	switch property["type"] {
	case "integer":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || !integer().MatchString(value) {
			return ast.Node{}, fmt.Errorf("%q is no whole number", clean.Line(value, 64))
		}
		return ast.Long(n), nil
	case "boolean":
		if value != "true" && value != "false" {
			return ast.Node{}, fmt.Errorf("%q is neither true nor false", clean.Line(value, 64))
		}
		return ast.Boolean(types.Boolean(value == "true")), nil
	case "string":
		if names, ok := property["enum"].([]any); ok && !slices.Contains(names, any(value)) {
			return ast.Node{}, fmt.Errorf("%q is none of the names that it can have", clean.Line(value, 64))
		}
		if pattern, ok := property["pattern"].(string); ok {
			if re, err := regexp.Compile(pattern); err == nil && !re.MatchString(value) {
				return ast.Node{}, fmt.Errorf("%q is not of its form", clean.Line(value, 64))
			}
		}
		return ast.String(types.String(value)), nil
	default:
		return ast.Node{}, errors.New("only texts, whole numbers, and true or false can be pinned")
	}
}

// unnamed is the policy's text as the engine writes it.
func unnamed(p *ast.Policy) []byte { return compiled(p).MarshalCedar() }

// layOut lays the rule out for a human, each condition on a line of its own.
func layOut(p *ast.Policy, client, name, id, note string, means []string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// %s may call %s without asking", client, name)
	if len(means) > 0 {
		fmt.Fprintf(&b, ": %s", strings.Join(means, ", "))
	}
	b.WriteString(".\n")
	if note := clean.Line(note, 200); note != "" {
		fmt.Fprintf(&b, "// %s\n", note)
	}
	fmt.Fprintf(&b, "@id(%s)\npermit (\n  principal in %s,\n  action == %s,\n  resource\n)", types.String(id).MarshalCedar(),
		types.NewEntityUID(clientType, types.String(client)), types.NewEntityUID(actionType, groupRun+":"+types.String(name)))
	for _, c := range p.Conditions {
		fmt.Fprintf(&b, "\nwhen { %s }", expression(c.Body))
	}
	b.WriteString(";\n")
	return b.String()
}

// expression is a condition as the engine writes it.
func expression(body ast.IsNode) string {
	text := string(unnamed(ast.Permit().When(ast.NewNode(body))))
	_, text, _ = strings.Cut(text, "when")
	text = strings.TrimSuffix(strings.TrimSpace(text), ";")
	text = strings.TrimSpace(text)
	return strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}"))
}

// same reads what was written, and refuses it if it is anything else than what was meant.
func same(p *ast.Policy, id, text string) error {
	list, err := cedar.NewPolicyListFromBytes("", []byte(text))
	if err != nil || len(list) != 1 {
		return errors.New("the rule cannot be written")
	}
	wanted := *p
	wanted.Annotations = []ast.AnnotationType{{Key: "id", Value: types.String(id)}}
	if !bytes.Equal(list[0].MarshalCedar(), cedar.NewPolicyFromAST((*public.Policy)(&wanted)).MarshalCedar()) {
		return errors.New("the rule cannot be written")
	}
	return nil
}
