// Package egress is the commands about where agents' tools may reach. The list is a file of the operator's; egress and the vault read it,
// and no RPC changes it.
package egress

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/security"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	cmd := &cobra.Command{
		Use:   "egress",
		Short: "Where agents' tools may reach",
		Long: `Egress is the process that reaches other hosts for agents (durward up --egress adds it). It goes where the list of domains
lets it, or where you say yes to one call; a domain on no list asks you, and what is blocked stays blocked. The list is
domains.yaml in the folder of the security configuration, and for the clients of one user users/USER/domains.yaml. Projects
that you trust (durward config trust) can block domains for their clients.`,
		Example: `  durward egress domains
  durward egress allow docs.example "*.docs.example" --client cursor
  durward egress block "*.zip"
  durward egress remove docs.example
  durward egress test https://docs.example/page
  durward egress log --since 24h`,
	}
	cmd.AddCommand(a.domainsCommand(), a.changeCommand("allow"), a.changeCommand("block"), a.removeCommand(), a.testCommand(), a.logCommand())
	cmd.AddCommand(a.reportCommands()...)
	return cli.Grouped(cli.GroupAccess, cmd)
}

func (a *app) domainsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "domains",
		Short: "The list of domains, and which file each is from",
		RunE:  func(*cobra.Command, []string) error { return a.domains() },
	}
}

func (a *app) domains() error {
	cfg, err := a.Config()
	if err != nil {
		return err
	}
	state, files := security.Look(cfg.Security(), nil)
	for _, f := range files {
		if f.Problem != "" && (state == nil || path.Base(f.Name) == destination.File) {
			return cli.Failed("Correct it; egress and the vault keep what was good.", "%s", clean.Line(f.String(), 500))
		}
	}
	type row struct {
		Domain  string   `json:"domain"`
		Verdict string   `json:"verdict"`
		Clients []string `json:"clients"`
		Agents  []string `json:"agents"`
		User    string   `json:"user"`
		Layer   string   `json:"layer"`
		File    string   `json:"file"`
	}
	rows := []row{}
	add := func(verdict string, list []destination.Entry) {
		for _, e := range list {
			rows = append(rows, row{e.Domain, verdict, cli.NonNil(e.Clients), cli.NonNil(e.Agents), e.User, e.Layer, e.File})
		}
	}
	add("blocked", state.Domains.Block)
	add("allowed", state.Domains.Allow)
	return a.Show(map[string]any{"domains": rows}, func() {
		a.Out.Table([]string{"DOMAIN", "VERDICT", "CLIENTS", "AGENTS", "FROM"}, output.Each(rows, func(r row) []string {
			everybody := "all"
			if r.User != "" {
				everybody = r.User + "'s"
			}
			return []string{r.Domain, r.Verdict, cmp.Or(strings.Join(r.Clients, ", "), everybody), cmp.Or(strings.Join(r.Agents, ", "), "all"), cmp.Or(r.File, r.Layer)}
		}))
		if len(state.Domains.Allow) == 0 {
			a.Out.Printf("No domain is allowed: you are asked about each request.\n")
		}
	})
}

// changeCommand is allow or block.
func (a *app) changeCommand(key string) *cobra.Command {
	var clients, agents []string
	var user string
	var yes bool
	cmd := &cobra.Command{
		Use:   key + " DOMAIN...",
		Short: map[string]string{"allow": "Let agents reach domains without asking", "block": "Let no agent reach domains, whatever allows them"}[key],
		Long: `Writes domains into domains.yaml, with your signature; egress and the vault read it within a second. "docs.example" is that
name alone, "*.docs.example" every name below it, and ":PORT" behind either that port alone. What is blocked stays blocked,
whatever allows it.`,
		Example:           "  durward egress " + key + ` docs.example "*.docs.example"`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, domains []string) error {
			if user == "" && cmd.Flags().Changed("user") { // or it would be in the list that is for all
				return cli.Usage("Name a user, or leave it away.", "--user is empty")
			}
			return a.change(cmd.Context(), key, domains, clients, agents, user, yes)
		},
	}
	cmd.Flags().StringSliceVar(&clients, "client", nil, "for these clients alone")
	cmd.Flags().StringSliceVar(&agents, "agent", nil, "for these agents alone")
	cmd.Flags().StringVar(&user, "user", "", "for this user's clients alone, in the user's own list")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	return cmd
}

func (a *app) change(ctx context.Context, key string, domains, clients, agents []string, user string, yes bool) error {
	cfg, err := a.Config()
	if err != nil {
		return err
	}
	for _, id := range clients {
		if _, err := cli.ClientUser(cfg, id); err != nil {
			return err
		}
	}
	if err := checkAgents(cfg, clients, agents); err != nil {
		return err
	}
	for _, domain := range domains {
		if err := destination.CheckDomain(domain, key == "allow"); err != nil {
			return cli.Usage("", "%s: %s", clean.Line(domain, 300), clean.Line(err.Error(), 300))
		}
		if key == "allow" && neverDialled(domain, cfg.EgressConfig()) {
			return cli.Usage("", "%s: egress dials no address of this host or of a private network, listed or not, unless local in egress.yaml names it with its port", domain)
		}
	}
	if state, _ := security.Look(cfg.Security(), nil); key == "allow" && state != nil {
		for _, domain := range domains {
			if by, blocked := staysBlocked(state.Domains, domain, clients, agents, user); blocked {
				first := cli.When(by.File != "", "Take it off that list first")
				if path.Base(by.File) == destination.File {
					first += ": durward egress remove " + cli.ShellWord(by.Domain) + cli.When(by.User != "", " --user "+cli.ShellWord(by.User))
				}
				return cli.Usage(first, "%s: %s blocks %s, whatever allows it", domain, cmp.Or(by.File, "Durward itself"), by.Domain)
			}
		}
	}
	file, name, err := cli.RuleFile(cfg, destination.File, user)
	if err != nil {
		return err
	}
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "egress " + key, Yes: yes, Plans: func() ([]*signedchange.Plan, error) {
		return signedchange.PrepareOne(file, name, func(raw []byte) ([]byte, error) {
			if len(raw) == 0 {
				raw = []byte("# Where agents' tools may reach (durward egress).\nallow: []\nblock: []\n")
			}
			for _, domain := range domains {
				item := entry(domain, clients, agents)
				var value any
				if err := yaml.Unmarshal([]byte(item), &value); err != nil {
					return nil, err
				}
				if edit.Has(raw, key, value) {
					continue
				}
				after, err := edit.Append(raw, key, item)
				if err != nil {
					return nil, err
				}
				raw = after
			}
			return raw, nil
		})
	}, Before: func() error {
		a.WarnOfUser(cfg, user)
		return nil
	}})
	of := whose(clients, agents, user)
	word := map[string]string{"allow": "agents" + of + " may reach ", "block": "no agent" + of + " reaches "}[key]
	return a.ReportRules(out, err, word+strings.Join(domains, ", "))
}

// whose are the agents that an entry is for: "" for all, or " named planner of cursor".
func whose(clients, agents []string, user string) (of string) {
	if len(agents) > 0 {
		of = " named " + strings.Join(agents, ", ")
	}
	switch {
	case len(clients) > 0:
		of += " of " + strings.Join(clients, ", ")
	case user != "":
		of += " of " + user + "'s clients"
	}
	return of
}

// checkAgents refuses a name that none of the clients gives an agent; no clients are all.
func checkAgents(cfg installdir.Config, clients, agents []string) error {
	if len(agents) == 0 {
		return nil
	}
	list, err := client.Admitted(cfg.Clients)
	if err != nil {
		return cli.Usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 1000))
	}
	var names []string
	for _, c := range list {
		if len(clients) == 0 || slices.Contains(clients, c.ID) {
			names = append(names, c.Agents...)
		}
	}
	for _, agent := range agents {
		if !slices.Contains(names, agent) {
			return cli.Usage(cli.DidYouMean(config.Suggest(agent, names), "See: durward client list"), "no client has an agent %s", clean.Visible(agent))
		}
	}
	return nil
}

func (a *app) removeCommand() *cobra.Command {
	var user string
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove DOMAIN...",
		Short: "Take domains off the list again",
		Long: `Takes domains out of domains.yaml, with your signature, whether they are allowed or blocked there, and for whichever clients
and agents; egress and the vault read it within a second. A domain is named as it stands in the list.`,
		Example:           `  durward egress remove docs.example "*.docs.example"`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeDomains,
		RunE: func(cmd *cobra.Command, domains []string) error {
			if user == "" && cmd.Flags().Changed("user") { // or it would be the list that is for all
				return cli.Usage("Name a user, or leave it away.", "--user is empty")
			}
			return a.remove(cmd.Context(), domains, user, yes)
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "from this user's own list")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	return cmd
}

func (a *app) remove(ctx context.Context, domains []string, user string, yes bool) error {
	cfg, err := a.Config()
	if err != nil {
		return err
	}
	file, name, err := cli.RuleFile(cfg, destination.File, user)
	if err != nil {
		return err
	}
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "egress remove", Yes: yes, Plans: func() ([]*signedchange.Plan, error) {
		return signedchange.PrepareOne(file, name, func(raw []byte) ([]byte, error) {
			for _, domain := range domains {
				found := false
				for _, key := range []string{"allow", "block"} {
					after, err := edit.Remove(raw, key, func(item any, _ string) bool { return domainOf(item) == domain })
					switch {
					case errors.Is(err, edit.ErrUnknown):
					case err != nil:
						return nil, err
					default:
						raw, found = after, true
					}
				}
				if !found {
					return nil, cli.Usage("See: durward egress domains", "%s does not stand in %s", clean.Visible(domain), name)
				}
			}
			return raw, nil
		})
	}})
	return a.ReportRules(out, err, "off the list: "+strings.Join(domains, ", "))
}

// domainOf is the domain of an item of the list; "" where it is none.
func domainOf(item any) string {
	if of, ok := item.(map[string]any); ok {
		item = of["domain"]
	}
	domain, _ := item.(string)
	return domain
}

// completeDomains completes the domains that stand in the operator's files.
func (a *app) completeDomains(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args[:0], func(cfg installdir.Config) (out []string, err error) {
		state, _ := security.Look(cfg.Security(), nil)
		if state == nil {
			return nil, nil
		}
		for _, e := range slices.Concat(state.Domains.Allow, state.Domains.Block) {
			if path.Base(e.File) == destination.File && !slices.Contains(args, e.Domain) {
				out = append(out, e.Domain)
			}
		}
		return out, nil
	})
}

// staysBlocked finds the entry that blocks a domain for whom it is to be allowed: for all, or one of the clients or agents.
func staysBlocked(list *destination.List, domain string, clients, agents []string, user string) (destination.Entry, bool) {
	to := destination.Destination{Host: domain} // without a port, what blocks every port is found
	if host, port, err := net.SplitHostPort(domain); err == nil {
		n, _ := strconv.ParseUint(port, 10, 16) // CheckDomain has seen it
		to = destination.Destination{Host: host, Port: uint16(n)}
	}
	for _, client := range append([]string{""}, clients...) {
		for _, agent := range append([]string{""}, agents...) {
			if verdict, by := list.Judge(destination.Party{Client: client, Agent: agent, User: user}, to); verdict == destination.Blocked {
				return by, true
			}
		}
	}
	return destination.Entry{}, false
}

// neverDialled reports whether a domain is an address that egress refuses whatever the list says, as far as that can be told by
// egress' own file. Egress judges by itself.
func neverDialled(domain, config string) bool {
	addr, err := netip.ParseAddr(domain)
	to, errPort := netip.ParseAddrPort(domain)
	if errPort == nil {
		addr, err = to.Addr(), nil
	}
	if err != nil || addr.IsGlobalUnicast() && !addr.IsPrivate() {
		return false
	}
	var file struct {
		Local []netip.AddrPort `yaml:"local"`
	}
	raw, err := os.ReadFile(config)
	if err == nil {
		err = yaml.Unmarshal(raw, &file)
	}
	return err != nil || !slices.ContainsFunc(file.Local, func(local netip.AddrPort) bool {
		return local == to || errPort != nil && local.Addr() == addr
	})
}

// entry is a line of the list. Domains are of plain letters; a star needs quotes.
func entry(domain string, clients, agents []string) string {
	text := `"` + domain + `"`
	if len(clients) == 0 && len(agents) == 0 {
		return text
	}
	text = "domain: " + text
	for _, of := range []struct {
		name string
		list []string
	}{{"clients", clients}, {"agents", agents}} {
		if len(of.list) > 0 {
			text += "\n" + of.name + `: ["` + strings.Join(of.list, `", "`) + `"]`
		}
	}
	return text
}

func (a *app) testCommand() *cobra.Command {
	r := &egressv1.TestURLRequest{}
	cmd := &cobra.Command{
		Use:               "test URL|NAME",
		Short:             "What would become of a request, and by which rule",
		Long:              "Asks egress what it would do with a URL; a name alone means https. No name is looked up and nothing is dialled.",
		Example:           "  durward egress test https://docs.example/page --client cursor",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			if r.Url, r.User = args[0], userOf(s.Config.Clients, r.GetClient()); !strings.Contains(r.GetUrl(), "://") {
				r.Url = "https://" + r.GetUrl()
			}
			return a.test(ctx, s, r)
		}),
	}
	cmd.Flags().StringVar(&r.Client, "client", "", "as this client (default: what is listed for all)")
	cmd.Flags().StringVar(&r.Agent, "agent", "", "as this agent of the client")
	return cmd
}

// userOf is whose client that is, for the lists of users; one that cannot be found is nobody's.
func userOf(file, id string) string {
	list, _ := client.Admitted(file)
	for _, c := range list {
		if c.ID == id {
			return c.User
		}
	}
	return ""
}

func (a *app) test(ctx context.Context, s *cli.Session, r *egressv1.TestURLRequest) error {
	if s.Egress == nil {
		return cli.Failed(cli.AddEgress(a.Home), "this installation has no egress")
	}
	answer, err := s.Egress.TestURL(ctx, r)
	if err != nil {
		return err
	}
	return a.Show(answer, func() {
		colour := map[string]func(string) string{"allowed": a.Out.Green, "asks": a.Out.Yellow}[answer.GetVerdict()]
		if colour == nil {
			colour = a.Out.Red
		}
		to := clean.Line(answer.GetDestination(), 300) // none where the URL is none
		a.Out.Printf("%s%s\n", colour(clean.Line(answer.GetVerdict(), 32)), cli.When(to != "", "  "+to))
		a.Out.Printf("%s (rule: %s)\n", clean.Line(answer.GetWhy(), 2000), clean.Line(answer.GetRule(), 300))
	})
}
