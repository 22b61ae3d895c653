package rules

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
)

// policyCases is the file of `policy test`.
type policyCases struct {
	Cases []policyCase `yaml:"cases"`
}

// policyCase is one call, and what is to become of it. What is not given of the client is as clients.yaml has it.
type policyCase struct {
	// Name is for people; the call unless given.
	Name   string `yaml:"name"`
	Client string `yaml:"client"`
	Tool   string `yaml:"tool"`
	// Arguments of the call; none unless given.
	Arguments map[string]any `yaml:"arguments"`
	// Expect is runs, asks or denied. Rule is the id of the rule that is to decide; any unless given.
	Expect string `yaml:"expect"`
	Rule   string `yaml:"rule"`

	Agent     string `yaml:"agent"`
	User      string `yaml:"user"`
	Channel   string `yaml:"channel"`
	KeyBound  *bool  `yaml:"key_bound"`
	Ceiling   string `yaml:"tier_ceiling"`
	Dangerous bool   `yaml:"dangerous"`
	// At is when; now unless given. Calls are how often the client called the tool before.
	At    time.Time `yaml:"at"`
	Calls struct {
		Session    uint32 `yaml:"session"`
		Day        uint32 `yaml:"day"`
		Month      uint32 `yaml:"month"`
		SinceLastS uint32 `yaml:"since_last_s"`
	} `yaml:"calls"`
}

func (a *app) policyTestCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE",
		Short: "Try the rules on cases that you wrote down",
		Long: `Decides on the calls of a YAML file with the rules as the files have them, without any process, and compares with
what the file expects. The exit code is 1 if one comes out otherwise: keep such a file beside your rules.

  cases:
    - client: cursor
      tool: switch_mode
      arguments: {mode_id: chat}
      expect: runs                     # runs, asks or denied
      rule: allow/cursor/switch_mode/1f2e3d4c   # optional
    - {client: cursor, tool: stop_service, arguments: {service_id: demo-chat}, expect: asks}

A case may also say agent, user, channel, key_bound, tier_ceiling, dangerous, at (a time) and calls {session, day, month,
since_last_s}; what it does not say of the client is as clients.yaml has it.`,
		Example:           "  durward policy test cases.yaml",
		Args:              cobra.ExactArgs(1),
		RunE:              a.Configured(func(_ context.Context, cfg installdir.Config, args []string) error { return a.testPolicy(cfg, args[0]) }),
		ValidArgsFunction: cli.CompleteFiles("yaml", "yml"),
	}
}

// caseResult is how one case came out, in --json too.
type caseResult struct {
	Case   string `json:"case"`
	Good   bool   `json:"good"`
	Expect string `json:"expect"`
	Got    string `json:"got"`
	Rule   string `json:"rule"`
	At     string `json:"at,omitempty"`
	Reason string `json:"reason,omitempty"`
	wanted string
}

func (a *app) testPolicy(cfg installdir.Config, file string) error {
	var cases policyCases
	if err := config.Load(file, &cases); err != nil {
		return cli.Usage("", "%s", clean.Block(err.Error(), 1000))
	}
	if len(cases.Cases) == 0 {
		return cli.Usage("", "%s holds no cases", clean.Visible(file))
	}
	options, done, err := cli.SecurityOptions(cfg)
	if err != nil {
		return err
	}
	defer done()
	state, files := security.Look(options, nil)
	if problems := problemsOf(files); state == nil || problems != "" {
		return cli.Failed("See: durward policy check", "the rules are not good: %s", clean.Block(problems, 4000))
	}
	facts, err := cli.ReadClientFacts(cfg.Clients)
	if err != nil {
		return cli.Usage("", "%s", clean.Line(err.Error(), 500))
	}
	results, wrong := []caseResult{}, 0
	for i, c := range cases.Cases {
		call, err := c.call(state, facts, a.Now())
		if err != nil {
			return cli.Usage("", "%s: case %d: %v", clean.Visible(file), i+1, err)
		}
		d := state.Policies.Decide(call)
		r := caseResult{Case: c.title(), Expect: c.Expect, Got: d.Verdict.String(), Rule: clean.Visible(d.Rule.ID), Reason: clean.Line(d.Reason, 300), wanted: c.Rule,
			At: clean.Visible(place(d.Rule.File, uint32(d.Rule.Line)))}
		r.Good = r.Got == c.Expect && (c.Rule == "" || c.Rule == d.Rule.ID)
		if !r.Good {
			wrong++
		}
		results = append(results, r)
	}
	return a.showCases(results, wrong)
}

func (a *app) showCases(results []caseResult, wrong int) error {
	err := a.Show(map[string]any{"good": wrong == 0, "cases": results}, func() {
		for _, r := range results {
			if r.Good {
				a.Out.Printf("%s %s: %s  %s\n", a.Out.Green("✓"), r.Case, r.Got, a.Out.Dim(r.Rule))
				continue
			}
			a.Out.Printf("%s %s\n", a.Out.Red("✗"), r.Case)
			a.Out.Printf("  %s\n  %s\n", a.Out.Red(strings.TrimRight("- "+r.Expect+"  "+clean.Visible(r.wanted), " ")), a.Out.Green("+ "+r.Got+"  "+r.Rule+"  "+r.At))
			if r.Reason != "" {
				a.Out.Printf("    %s\n", r.Reason)
			}
		}
		if wrong == 0 {
			a.Out.Printf("%d cases, all as expected.\n", len(results))
		}
	})
	if err == nil && wrong > 0 {
		err = cli.Failed("", "%d of %d cases came out otherwise", wrong, len(results))
	}
	return err
}

func (c policyCase) title() string {
	if c.Name != "" {
		return clean.Visible(c.Name)
	}
	raw, err := json.Marshal(c.Arguments)
	if err != nil || len(c.Arguments) == 0 {
		return clean.Visible(c.Client + " " + c.Tool)
	}
	return clean.Visible(c.Client + " " + c.Tool + " " + string(raw))
}

// call is what the vault would decide on.
func (c policyCase) call(state *security.State, facts []cli.ClientFacts, now time.Time) (policy.Call, error) {
	var none policy.Call
	switch c.Expect {
	case policy.Run.String(), policy.Ask.String(), policy.Deny.String():
	default:
		return none, fmt.Errorf("expect is runs, asks or denied")
	}
	client := cli.ClientFacts{ID: c.Client, Channel: "cli", Ceiling: "DESTRUCTIVE", KeyBound: true}
	for _, f := range facts {
		if f.ID == c.Client {
			client = f
		}
	}
	client.User, client.Channel, client.Ceiling = cmp.Or(c.User, client.User), cmp.Or(c.Channel, client.Channel), cmp.Or(c.Ceiling, client.Ceiling)
	if c.KeyBound != nil {
		client.KeyBound = *c.KeyBound
	}
	kind, channelName, _ := strings.Cut(client.Channel, ":")
	channel, ok := callv1.Channel_value["CHANNEL_"+strings.ToUpper(kind)]
	ceiling, okTier := optionsv1.Tier_value["TIER_"+client.Ceiling]
	if !ok || !okTier {
		return none, fmt.Errorf("channel or tier_ceiling is none that there is")
	}
	tool, err := lookupTool(c.Tool)
	if err != nil {
		return none, err
	}
	raw := []byte("{}")
	if len(c.Arguments) > 0 {
		if raw, err = json.Marshal(c.Arguments); err != nil {
			return none, fmt.Errorf("arguments are none")
		}
	}
	arguments, err := decodeArguments(tool, raw)
	if err != nil {
		return none, err
	}
	if !c.At.IsZero() {
		now = c.At
	}
	values := state.Values(client.ID, client.User)
	counts := policy.Counts{Session: c.Calls.Session, Day: c.Calls.Day, Month: c.Calls.Month}
	if c.Calls.SinceLastS > 0 {
		counts.Last = now.Add(-time.Duration(c.Calls.SinceLastS) * time.Second)
	}
	return policy.Call{
		Client: client.ID, Agent: c.Agent, User: client.User, Channel: callv1.Channel(channel), ChannelName: channelName, KeyBound: client.KeyBound,
		Ceiling: min(optionsv1.Tier(ceiling), values.TierCeiling), Dangerous: c.Dangerous && client.KeyBound && values.DangerousAllowed,
		DesktopAllowed: values.DesktopAllowed, Tool: tool, Arguments: arguments, Counts: counts, Now: now,
	}, nil
}
