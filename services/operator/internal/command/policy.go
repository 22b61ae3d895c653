package command

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/security/custody"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Which calls run, ask you, or are denied",
		Long: `The rules of who may call what. What is built in: tools that only look run, what changes something asks you, and
what nothing permits is denied. Your own rules are Cedar files in policy/ and the short cuts in tools.yaml; a forbid
always wins. What runs without asking must also stand in the executor's own list: "durward policy allow" writes both.`,
	}
	cmd.AddCommand(a.policyAllowCommand(), a.policyLimitCommand(), a.policyListCommand(), a.policyRemoveCommand(), a.policyCheckCommand(),
		a.policyExplainCommand(), a.policyTestCommand())
	return cmd
}

// shownRule is one rule, in --json too.
type shownRule struct {
	Rule    string `json:"rule"`
	Layer   string `json:"layer"`
	File    string `json:"file,omitempty"`
	Line    uint32 `json:"line,omitempty"`
	Forbids bool   `json:"forbids"`
}

func (a *app) policyListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "The rules in force",
		Example: "  durward policy list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			rules := []shownRule{}
			vault := a.policyInForce(cmd.Context(), "")
			if vault != nil {
				for _, r := range vault.GetRules() {
					rules = append(rules, shownRule{clean.Visible(r.GetRule()), clean.Line(r.GetLayer(), 16), clean.Visible(r.GetFile()), r.GetLine(), r.GetForbids()})
				}
			} else if rules, err = rulesOfFiles(cfg); err != nil {
				return err
			}
			if a.json {
				return a.out.Value(map[string]any{"vault_answered": vault != nil, "rules": rules})
			}
			cells := make([][]string, 0, len(rules))
			for _, r := range rules {
				does := a.out.Green("permits")
				if r.Forbids {
					does = a.out.Red("forbids")
				}
				cells = append(cells, []string{r.Rule, does, r.Layer, place(r.File, r.Line)})
			}
			a.out.Table([]string{"RULE", "DOES", "LAYER", "STANDS AT"}, cells)
			if vault == nil {
				a.out.Remark("%s", a.out.Yellow("The vault does not answer: this is what the files say, not what is in force."))
			}
			return nil
		},
	}
}

func place(file string, line uint32) string {
	if file == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", file, line)
}

func rulesOfFiles(cfg home.Config) ([]shownRule, error) {
	options, done, err := securityOptions(cfg)
	if err != nil {
		return nil, err
	}
	defer done()
	state, files := security.Look(options, nil)
	if state == nil {
		return nil, usage("", "the rules cannot be read: %s", clean.Block(problemsOf(files), 4000))
	}
	out := []shownRule{}
	for _, r := range state.Policies.Rules() {
		out = append(out, shownRule{clean.Visible(r.ID), string(r.Layer), clean.Visible(r.File), uint32(r.Line), r.Forbids})
	}
	return out, nil
}

func problemsOf(files []security.File) string {
	var out []string
	for _, f := range files {
		if f.Problem != "" {
			out = append(out, problemLine(f))
		}
	}
	return strings.Join(out, "\n")
}

func (a *app) policyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE...]",
		Short: "What is wrong with the rules, before the vault says so",
		Long: `Checks the files of the security folder as the vault does: their form, each rule against the contract's types, and
rules that can never match. With FILEs it checks those instead, as rules of the system's layer. It needs no process running.

The exit code is 1 if something is wrong; warnings alone leave it 0.`,
		Example: "  durward policy check\n  durward policy check draft.cedar",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return a.checkPolicy(cfg, args)
		},
	}
}

func (a *app) checkPolicy(cfg home.Config, files []string) error {
	var sources []policy.Source
	var broken []security.File
	var unbound map[string]string
	if len(files) == 0 {
		options, done, err := securityOptions(cfg)
		if err != nil {
			return err
		}
		defer done()
		state, all := security.Look(options, nil)
		if state != nil {
			sources = state.Sources()
		}
		unbound = emptyUsers(cfg, all)
		broken = slices.DeleteFunc(all, func(f security.File) bool { return f.Problem == "" })
	}
	for _, name := range files {
		text, err := custody.ReadFile(name, maxProject, nil)
		if err != nil {
			return usage("", "%s cannot be read: %s", clean.Visible(name), clean.Line(err.Error(), 200))
		}
		sources = append(sources, policy.Source{Layer: policy.System, Name: name, Text: text})
	}
	var known policy.Known
	if list, err := readClientFacts(cfg.Clients); err == nil {
		for _, c := range list {
			known.Clients = append(known.Clients, c.ID)
			known.Users = append(known.Users, c.User)
		}
	}
	known.Unattended = unattendedTools(cfg.ExecutorConfig)
	problems := policy.CheckKnown(sources, known)
	type row struct {
		File    string `json:"file"`
		Line    int    `json:"line,omitempty"`
		Column  int    `json:"column,omitempty"`
		Text    string `json:"text"`
		Warning bool   `json:"warning"`
	}
	rows, wrong := []row{}, 0
	for _, folder := range slices.Sorted(maps.Keys(unbound)) {
		rows = append(rows, row{File: clean.Visible(folder), Text: clean.Line(folder+": warning: "+unbound[folder], 500), Warning: true})
	}
	for _, f := range broken {
		rows = append(rows, row{File: clean.Visible(f.Name), Text: clean.Line(problemLine(f), 500)})
		wrong++
	}
	for _, p := range problems {
		rows = append(rows, row{clean.Visible(p.File), p.Line, p.Column, clean.Line(p.String(), 500), p.Warning})
		if !p.Warning {
			wrong++
		}
	}
	if a.json {
		if err := a.out.Value(map[string]any{"good": wrong == 0, "problems": rows}); err != nil {
			return err
		}
	} else {
		for _, r := range rows {
			text := a.out.Red(r.Text)
			if r.Warning {
				text = a.out.Yellow(r.Text)
			}
			a.out.Printf("%s\n", text)
		}
		if len(rows) == 0 {
			a.out.Printf("%s the rules are good.\n", a.out.Green("✓"))
		}
	}
	if wrong > 0 {
		return failed("What was good before stays in force until it is corrected.", "%d of the rules' files or rules are wrong", wrong)
	}
	return nil
}

func (a *app) policyExplainCommand() *cobra.Command {
	var as, agent string
	var dangerous bool
	cmd := &cobra.Command{
		Use:   "explain --as CLIENT TOOL [ARGUMENT=VALUE... | JSON]",
		Short: "What would become of a call, and by which rule",
		Long: `Asks the vault what it would decide on a call that nobody makes, with the rules that it has in force: whether it runs,
asks you or is denied, the rule that decides, and where that stands. Nothing is asked, counted or carried out.`,
		Example: `  durward policy explain --as cursor switch_mode mode_id=chat
  durward policy explain --as cursor stop_service '{"service_id":"demo-chat"}'
  durward policy explain --as cursor simulate_mode start=coder,embed context_overrides=coder=16384`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if as == "" {
				return usage("Say as whom: --as CLIENT", "a decision is about a client")
			}
			tool, err := lookupTool(args[0])
			if err != nil {
				return err
			}
			arguments, err := explainArguments(tool, args[1:])
			if err != nil {
				return err
			}
			return a.explainCall(cmd.Context(), &vaultv1.ExplainCallRequest{Client: as, Tool: tool.Name, Arguments: arguments, Agent: agent, Dangerous: dangerous})
		},
	}
	cmd.ValidArgsFunction = completeTools
	cmd.Flags().StringVar(&as, "as", "", "the client that calls")
	cmd.Flags().StringVar(&agent, "agent", "", "one of the client's agents")
	cmd.Flags().BoolVar(&dangerous, "dangerous", false, "as if the session were in dangerous mode")
	a.completeFlagWith(cmd, "as", a.completeClients)
	a.completeFlagWith(cmd, "agent", a.completeAgents)
	return cmd
}

func (a *app) explainCall(ctx context.Context, request *vaultv1.ExplainCallRequest) error {
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	response, err := s.Vault.Policy.ExplainCall(ctx, request)
	if err != nil {
		return err
	}
	rule := response.GetRule()
	if a.json {
		return a.out.Value(map[string]any{
			"client": request.GetClient(), "tool": request.GetTool(), "decision": response.GetDecision(), "tier": contract.TierName(response.GetTier()),
			"reason": response.GetReason(),
			"rule":   shownRule{rule.GetRule(), rule.GetLayer(), rule.GetFile(), rule.GetLine(), rule.GetForbids()},
		})
	}
	a.out.Printf("%s  %s %s  %s\n", a.decisionColour(response.GetDecision()), clean.Visible(request.GetClient()), clean.Visible(request.GetTool()),
		contract.TierName(response.GetTier()))
	if response.GetReason() != "" {
		a.out.Printf("  %s\n", clean.Line(response.GetReason(), 500))
	}
	at := clean.Visible(place(rule.GetFile(), rule.GetLine()))
	a.out.Printf("  rule %s  %s  %s\n", clean.Visible(rule.GetRule()), clean.Line(rule.GetLayer(), 16), at)
	return nil
}

func (a *app) decisionColour(decision string) string {
	switch decision {
	case "runs":
		return a.out.Green("runs")
	case "asks":
		return a.out.Yellow("asks")
	}
	return a.out.Red(clean.Line(decision, 16))
}

func lookupTool(name string) (contract.Tool, error) {
	tool, ok := contract.Lookup(name)
	if ok {
		return tool, nil
	}
	next := "Tools: " + strings.Join(toolNames(), ", ")
	if near := config.Suggest(name, toolNames()); len(near) > 0 {
		next = "Did you mean " + strings.Join(near, ", ") + "?"
	}
	return tool, usage(next, "there is no tool %s", clean.Visible(name))
}

func toolNames() []string {
	var names []string
	for _, t := range contract.Tools() {
		names = append(names, t.Name)
	}
	return names
}

func completeTools(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	switch {
	case len(args) == 0:
		for _, t := range contract.Tools() {
			out = append(out, cobra.CompletionWithDesc(t.Name, contract.TierName(t.Tier)))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	default:
		if t, ok := contract.Lookup(args[0]); ok {
			fields := t.Method.Input().Fields()
			for i := range fields.Len() {
				out = append(out, string(fields.Get(i).Name())+"=")
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completeAgents completes the agents that clients.yaml names.
func (a *app) completeAgents(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.homeDir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := at.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, _ := readClientFacts(cfg.Clients)
	var out []string
	for _, c := range list {
		out = append(out, c.Agents...)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// explainArguments turns what was typed into the canonical arguments of a call, held to the contract as a call's would be.
func explainArguments(tool contract.Tool, words []string) ([]byte, error) {
	raw := []byte("{}")
	switch {
	case len(words) == 1 && strings.HasPrefix(strings.TrimSpace(words[0]), "{"):
		raw = []byte(words[0])
	case len(words) > 0:
		object := map[string]any{}
		for _, w := range words {
			name, value, ok := strings.Cut(w, "=")
			if !ok {
				return nil, usage("Write ARGUMENT=VALUE, or one JSON object.", "%q is no argument", clean.Visible(w))
			}
			typed, err := argumentValue(tool, name, collection(tool, name, value))
			if err != nil {
				return nil, err
			}
			object[name] = typed
		}
		var err error
		if raw, err = json.Marshal(object); err != nil {
			return nil, err
		}
	}
	return decodeArguments(tool, raw)
}

// collection writes words with commas between them as the JSON list that an argument is, and words with values, "chat=8192", as the
// JSON object. What is JSON already stays as it is, and so does what is neither.
func collection(tool contract.Tool, name, text string) string {
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, _ := properties[name].(map[string]any)
	if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
		return text
	}
	var value any
	switch property["type"] {
	case "array":
		value = strings.Split(text, ",")
	case "object":
		object := map[string]json.RawMessage{}
		for pair := range strings.SplitSeq(text, ",") {
			key, of, ok := strings.Cut(pair, "=")
			if _, twice := object[key]; !ok || twice || !json.Valid([]byte(of)) {
				return text
			}
			object[key] = json.RawMessage(of)
		}
		value = object
	default:
		return text
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return text
	}
	return string(raw)
}

// decodeArguments holds arguments to the contract, as edge and sink do.
func decodeArguments(tool contract.Tool, raw []byte) ([]byte, error) {
	var object map[string]any
	// A plan's digest says what was looked at, which nobody has here.
	if properties, _ := tool.InputSchema["properties"].(map[string]any); properties["plan_digest"] != nil && json.Unmarshal(raw, &object) == nil && object != nil {
		if _, given := object["plan_digest"]; !given {
			object["plan_digest"] = strings.Repeat("0", 64)
			if filled, err := json.Marshal(object); err == nil {
				raw = filled
			}
		}
	}
	flat, err := canonical.Transform(raw)
	if err != nil {
		return nil, usage("", "the arguments are not one JSON object")
	}
	message, err := tool.Decode(flat)
	if err != nil {
		return nil, usage("", "%s does not take these arguments: %s", tool.Name, clean.Line(err.Error(), 300))
	}
	arguments, err := contract.Canonical(message)
	if err != nil {
		return nil, usage("", "%s does not take these arguments", tool.Name)
	}
	return arguments, nil
}

// argumentValue reads a word as the argument's type has it.
func argumentValue(tool contract.Tool, name, value string) (any, error) {
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, ok := properties[name].(map[string]any)
	if !ok {
		known := []string{}
		for n := range properties {
			known = append(known, n)
		}
		slices.Sort(known)
		next := "It takes " + strings.Join(known, ", ")
		if len(known) == 0 {
			next = "It takes none."
		}
		return nil, usage(next, "%s has no argument %s", tool.Name, clean.Visible(name))
	}
	if property["type"] == "string" {
		return value, nil
	}
	var typed any
	if err := json.Unmarshal([]byte(value), &typed); err != nil {
		return nil, usage("Write it as JSON.", "%q is no value of %s", clean.Visible(value), name)
	}
	return typed, nil
}

// removeRule is `policy remove`; the rule is found in any file of the layer.
func (a *app) policyRemoveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove RULE",
		Short: "Take away a rule that was allowed, with your signature",
		Long: `Takes a rule out of the policy file that it stands in, by its id, with the comment above it; and the entry that
"durward policy allow" wrote with it out of the executor's list. Rules of tools.yaml are taken out by hand or with
"durward policy limit".
` + signedChange,
		Example:           "  durward policy list\n  durward policy remove allow/cursor/switch_mode/1f2e3d4c",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeOwnRules,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.removeRule(cmd.Context(), args[0], yes)
		},
	}
	a.ruleFlags(cmd, nil, &yes)
	return cmd
}

// completeOwnRules completes the ids of rules that stand in Cedar files.
func (a *app) completeOwnRules(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	at, err := home.At(a.homeDir)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := at.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	rules, _ := rulesOfFiles(cfg)
	var out []string
	for _, r := range rules {
		if strings.HasSuffix(r.File, ".cedar") && r.Layer != string(policy.BuiltIn) {
			out = append(out, r.Rule)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// unattendedTools are the tools that the executor's own list names; none where it cannot be read, which is for the executor to say.
func unattendedTools(path string) []string {
	var listed struct {
		Unattended []any `yaml:"unattended"`
	}
	raw, err := os.ReadFile(path)
	if err != nil || yaml.Unmarshal(raw, &listed) != nil {
		return nil
	}
	var names []string
	for _, entry := range listed.Unattended {
		switch e := entry.(type) {
		case string:
			names = append(names, e)
		case map[string]any:
			if name, ok := e["tool"].(string); ok {
				names = append(names, name)
			}
		}
	}
	return names
}
