package credentials

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/statement"
)

const valueHelp = `
The value is asked for at the terminal, without showing it; --file reads it from a file and --stdin from standard input
(one newline at its end is left out). It is never an argument: other programs see those. You sign its name, its number and a
digest under a random key, by which nobody can guess it.`

// source is where a value comes from.
type source struct {
	file  string
	stdin bool
}

func (v *source) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&v.file, "file", "", "read the value from `FILE`")
	cmd.Flags().BoolVar(&v.stdin, "stdin", false, "read the value from standard input")
	cmd.MarkFlagsMutuallyExclusive("file", "stdin")
}

func (a *app) value(ctx context.Context, v source) (value []byte, err error) {
	switch {
	case v.stdin:
		value, err = io.ReadAll(io.LimitReader(a.Streams.In, statement.MaxCredential+2))
	case v.file != "":
		value, err = os.ReadFile(v.file)
	default:
		value, err = ask(ctx, "The value (it is not shown): ", "the value", "--file or --stdin")
	}
	if err != nil {
		return nil, err
	}
	value = bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r"))
	if len(value) == 0 || len(value) > statement.MaxCredential {
		return nil, cli.Usage("It has 1 to 65536 bytes.", "that is no value")
	}
	return value, nil
}

// ask asks for what at the terminal; flags take it from elsewhere.
func ask(ctx context.Context, prompt, what, flags string) ([]byte, error) {
	answer, err := signingkey.AskTerminal(ctx, prompt)
	return answer, unasked(err, what, flags)
}

// unasked says what could not be asked for: not the passphrase of the signing key, of which the error speaks.
func unasked(err error, what, flags string) error {
	if errors.Is(err, signingkey.ErrNeedsHuman) {
		return cli.Denied("Run the command at a terminal, or give "+what+" with "+flags+".", "there is no terminal to ask for %s at", what)
	}
	return err
}

// put is a new value, for a new credential or for one that is there.
type put struct {
	name     string
	source   source
	file     bool
	variable string
	how      *cli.Asking
}

func (a *app) addCommand() *cobra.Command {
	var p put
	var path string
	cmd := &cobra.Command{
		Use:   "add NAME (--variable VAR | --path-variable VAR)",
		Short: "Store a credential, with your signature",
		Long: `Stores a credential under a name. No service gets it before "durward credential grant".

A program that can read a credential from a file gets it with --path-variable: a file in memory, which no folder shows, and
whose path is in the variable. For a program that takes nothing else --variable puts the value itself into the variable, where
every process of the service's user can read it.
` + valueHelp,
		Example: `  durward credential add hf-token --path-variable HF_TOKEN_PATH
  durward credential add hf-token --variable HF_TOKEN --file token.txt`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			if p.name = args[0]; path != "" {
				p.file, p.variable = true, path
			}
			return a.add(ctx, s, p)
		}),
	}
	cmd.Flags().StringVar(&p.variable, "variable", "", "`VAR` holds the value")
	cmd.Flags().StringVar(&path, "path-variable", "", "`VAR` holds the path of a file with the value")
	cmd.MarkFlagsMutuallyExclusive("variable", "path-variable")
	p.source.flags(cmd)
	p.how = cli.AskingFlags(cmd)
	return cmd
}

func (a *app) add(ctx context.Context, s *cli.Session, p put) error {
	switch {
	case !statement.CredentialName(p.name):
		return cli.Usage("Small letters, digits, _ - and ., 64 at most.", "%s is no name of a credential", clean.Visible(p.name))
	case p.variable == "":
		return cli.Usage("--path-variable HF_TOKEN_PATH, or --variable HF_TOKEN", "how a program gets it is not said")
	case !statement.CredentialVariable(p.variable):
		return cli.Usage("Capital letters, digits and _, and none that changes how programs run.", "%s cannot hold a credential", clean.Visible(p.variable))
	}
	value, err := a.value(ctx, p.source)
	if err != nil {
		return err
	}
	defer clear(value)
	return a.store(ctx, s, p, value)
}

// store signs for a value and sends it.
func (a *app) store(ctx context.Context, s *cli.Session, p put, value []byte) error {
	delivery := statement.DeliveryEnvironment
	if p.file {
		delivery = statement.DeliveryFile
	}
	return a.change(ctx, s, "Sign and store it?", *p.how, value, &statement.Credential{
		Action: statement.CredentialAdd, Name: p.name, Version: 1, Delivery: delivery, Variable: p.variable,
	})
}

func (a *app) rotateCommand() *cobra.Command {
	var p put
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Give a credential a new value, with your signature",
		Long: `Gives a credential a new value. What is started from now on gets it; what runs keeps the one that it got. Older values
stay until they are removed: durward credential remove NAME --version N.
` + valueHelp,
		Example:           "  durward credential rotate hf-token",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			c, err := a.find(ctx, s, args[0])
			if err != nil {
				return err
			}
			value, err := a.value(ctx, p.source)
			if err != nil {
				return err
			}
			defer clear(value)
			return a.change(ctx, s, "Sign and store the new value?", *p.how, value, &statement.Credential{
				Action: statement.CredentialRotate, Name: c.GetName(), Version: int(c.GetVersions()[0].GetVersion()) + 1,
			})
		}),
	}
	p.source.flags(cmd)
	p.how = cli.AskingFlags(cmd)
	return cmd
}

// grant is to whom a credential is granted, as flags say it.
type grant struct {
	origins, agents []string
	servers         []string
	header, scheme  string
	body            string
	unattended      bool
	lasts           time.Duration
	how             *cli.Asking
}

func (a *app) grantCommand() *cobra.Command {
	var g grant
	cmd := &cobra.Command{
		Use:   "grant NAME (SERVICE... | --server ID | --origin URL --agent CLIENT)",
		Short: "Let services, MCP servers or requests have a credential, with your signature",
		Long: `Adds to those that may get a credential. A service gets it when it is started by a call, its catalogue entry names it, and it
is granted here. With --unattended it gets it in starts without a call too: a restart by rule, a boot mode, the undoing of a
switch after the executor was restarted.

With --server another's MCP server gets it whenever it starts, or in each request where it is on another host, if its entry in
servers.yaml names it; whichever client calls, so --agent does not go with it.

With --origin the value goes into requests that agents make: to that origin exactly, by the agents named here whose line in
clients.yaml names the credential, in calls that you let happen and that refer to it: {"$credential":"NAME"}. No agent sees
it. It goes into a header, unless --body names another place; a URL never holds it; of --scheme Basic it is NAME:PASSWORD.

What is not said here stays as it was granted before; --agent and --origin are added to what is there. All services have one
end and one --unattended, so have all origins. What has ended is not granted anew.`,
		Example: `  durward credential grant hf-token llm
  durward credential grant hf-token llm --unattended --for 720h
  durward credential grant github --server github
  durward credential grant github --origin https://api.github.com --agent claude
  durward credential grant shop --origin https://shop.example --agent claude --body /auth/token`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.complete,
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&g.servers, "server", nil, "this MCP `SERVER` of servers.yaml may have it")
	flags.StringArrayVar(&g.origins, "origin", nil, "requests to this origin, such as https://api.example.com, may have it")
	flags.StringArrayVar(&g.agents, "agent", nil, "calls of this `CLIENT`, or CLIENT/AGENT, alone")
	flags.StringVar(&g.header, "header", "Authorization", "with --origin: the `HEADER` that the value goes into")
	flags.StringVar(&g.scheme, "scheme", "Bearer", "with --origin: what stands before the value; \"\" for nothing")
	flags.StringVar(&g.body, "body", "", "with --origin: the `/MEMBER` of a JSON body that holds the value, instead of a header")
	cmd.MarkFlagsMutuallyExclusive("header", "body")
	cmd.MarkFlagsMutuallyExclusive("scheme", "body")
	flags.BoolVar(&g.unattended, "unattended", false, "services get it in starts without a call too")
	flags.DurationVar(&g.lasts, "for", 0, "it ends by itself after this time (default: when it is revoked)")
	cli.CompleteFlag(cmd, "server", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		cfg, err := a.Config()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return cfg.Servers(), cobra.ShellCompDirectiveNoFileComp
	})
	for _, name := range []string{"origin", "agent", "header", "scheme", "body", "for"} {
		cli.CompleteFlag(cmd, name, cobra.NoFileCompletions)
	}
	g.how = cli.AskingFlags(cmd)
	cmd.RunE = a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
		c, err := a.find(ctx, s, args[0])
		if err != nil {
			return err
		}
		to, err := a.granted(ctx, s, c, args[1:], g, flags.Changed)
		if err != nil {
			return err
		}
		return a.change(ctx, s, "Sign and grant it?", *g.how, nil, &statement.Credential{
			Action: statement.CredentialGrant, Name: c.GetName(), CredentialGrants: *to,
		})
	})
	return cmd
}

// place is where the value goes in requests, as statements have it.
func (g *grant) place() string {
	if g.body != "" {
		return "/" + strings.TrimPrefix(g.body, "/")
	}
	return g.header
}

// granted is the whole of what one sink may do with a credential once the flags are added to what it may do now.
func (a *app) granted(ctx context.Context, s *cli.Session, c *vaultv1.Credential, services []string, g grant, said func(flag string) bool) (*statement.CredentialGrants, error) {
	toOrigins, toServers := len(g.origins) > 0, len(g.servers) > 0
	inRequest := said("header") || said("body")
	switch {
	case toServers && (toOrigins || len(services) > 0), !toServers && toOrigins == (len(services) > 0):
		return nil, cli.Usage("Name services, --server, or --origin.", "it is not said to whom it is granted, or two things at once are")
	case toOrigins && g.unattended, !toOrigins && (inRequest || said("scheme")):
		return nil, cli.Usage("--header, --scheme and --body go with --origin, --unattended with services.", "the flags do not fit together")
	case toServers && len(g.agents) > 0:
		return nil, cli.Usage("Say in clients.yaml which clients may call it.", "--agent does not go with --server: an MCP server has the credential for every client that calls it")
	case said("for") && g.lasts <= 0:
		return nil, cli.Usage("--for 720h", "a grant lasts for a time that is to come")
	}
	to := &statement.CredentialGrants{Sink: s.Config.Executor.Identity}
	if toOrigins || toServers {
		self, err := identity.Parse(to.Sink)
		if err != nil {
			return nil, err
		}
		egress, err := identity.New(self.TrustDomain(), optionsv1.Role_ROLE_EGRESS, self.Instance())
		if err != nil {
			return nil, err
		}
		if to.Sink = egress.String(); toOrigins {
			to.Place, to.Scheme = g.place(), g.scheme
		}
	}
	for _, now := range c.GetGrants() {
		if now.GetSink() != to.Sink || a.over(now) {
			continue
		}
		to.Services, to.Origins, to.Agents, to.Unattended = now.GetServices(), now.GetOrigins(), now.GetAgents(), now.GetUnattended()
		if now.GetEndsAt() != nil {
			to.Until = statement.FormatTime(now.GetEndsAt().AsTime())
		}
		if !inRequest && toOrigins {
			to.Place = now.GetPlace()
		}
		if !said("scheme") && toOrigins {
			to.Scheme = now.GetScheme()
		}
	}
	if strings.HasPrefix(to.Place, "/") {
		to.Scheme = ""
	}
	if said("unattended") || toServers {
		to.Unattended = g.unattended || toServers
	}
	if g.lasts > 0 {
		to.Until = statement.FormatTime(a.Now().Add(g.lasts))
	}
	var known []string
	if toServers {
		services, known = g.servers, s.Config.Servers()
	} else if len(services) > 0 {
		var err error
		if known, err = s.IDs(ctx, "service"); err != nil {
			return nil, err
		}
	}
	for _, service := range services {
		if !slices.Contains(known, service) && toServers {
			return nil, cli.Usage("See: durward server list", "servers.yaml has no server %s", clean.Visible(service))
		}
		if !slices.Contains(known, service) {
			return nil, cli.Usage("See: durward services", "the catalogue has no service %s", clean.Visible(service))
		}
	}
	for _, origin := range g.origins {
		exact, err := statement.Origin(origin)
		if err != nil {
			return nil, cli.Usage("--origin https://api.example.com", "%s is no origin: %s", clean.Visible(origin), err)
		}
		to.Origins = append(to.Origins, exact)
	}
	to.Services, to.Agents = append(to.Services, services...), append(to.Agents, g.agents...)
	for _, list := range []*[]string{&to.Services, &to.Origins, &to.Agents} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	if err := to.Check(); err != nil {
		return nil, cli.Usage("See: durward credential grant --help", "%s", err)
	}
	if (toOrigins || toServers) && s.Egress == nil {
		return nil, cli.Failed(cli.AddEgress(a.Home), "there is no egress here, which sends requests and runs servers")
	}
	for _, agent := range g.agents {
		client, _, _ := strings.Cut(agent, "/")
		if _, err := cli.ClientUser(s.Config, client); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func (a *app) importCommand() *cobra.Command {
	var p put
	cmd := &cobra.Command{
		Use:   "import-env VAR",
		Short: "Move a credential from a variable of your environment into the vault",
		Long: `Stores the value of a variable of this command's own environment, to be given to services as that variable. Programs that
take a credential from an environment that somebody set for them go on working, and durward says that this is deprecated:
such a value is in shells, unit files and histories, and nobody can say who has it.`,
		Example:           "  durward credential import-env HF_TOKEN",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			p.variable = args[0]
			p.name = cmp.Or(p.name, strings.ReplaceAll(strings.ToLower(p.variable), "_", "-"))
			value := []byte(a.Streams.Getenv(p.variable))
			defer clear(value)
			switch {
			case !statement.CredentialName(p.name) || !statement.CredentialVariable(p.variable):
				return cli.Usage("Capital letters, digits and _, and none that changes how programs run.", "%s cannot hold a credential", clean.Visible(p.variable))
			case len(value) == 0 || len(value) > statement.MaxCredential:
				return cli.Usage("Set it for this command alone.", "%s is not set, or too long", clean.Visible(p.variable))
			}
			if err := a.store(ctx, s, p, value); err != nil {
				return err
			}
			a.Out.Remark("Warning: credentials in environment variables are deprecated. Take %s out of your shell's and units' files, and give it a new value: %s credential rotate %s",
				p.variable, a.Typed(), p.name)
			return nil
		}),
	}
	cmd.Flags().StringVar(&p.name, "name", "", "store it under this name (default: the variable's, in small letters)")
	p.how = cli.AskingFlags(cmd)
	return cmd
}

// change signs a statement about a credential and sends it with its value.
func (a *app) change(ctx context.Context, s *cli.Session, question string, how cli.Asking, value []byte, c *statement.Credential) error {
	status, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	request := &vaultv1.ChangeCredentialRequest{Value: value}
	if value != nil {
		request.Salt = make([]byte, statement.CommitmentKey)
		if _, err := rand.Read(request.Salt); err != nil {
			return err
		}
		c.Commitment = statement.Commitment(request.Salt, c.Name, c.Version, value)
	}
	signer := a.Signer(s)
	document := approval.DocumentOf(signer.Credential(s.Config.Vault.Identity, status.GetEpoch(), c), nil)
	var signed []*callv1.HumanStatement
	if signed, err = a.AskAndSign(ctx, s, question, how, document); err != nil {
		return err
	}
	request.Statement = signed[0]
	answer, err := s.Vault.Credentials.ChangeCredential(ctx, request)
	if err != nil {
		return err
	}
	return a.Show(answer, func() {
		one := answer.GetCredential()
		a.Out.Printf("%s %s, version %d, %s\n", a.Out.Green("✓"), one.GetName(), one.GetVersions()[0].GetVersion(), grantedTo(one))
	})
}

func grantedTo(c *vaultv1.Credential) string {
	to := output.Each(c.GetGrants(), func(g *vaultv1.CredentialGrant) string {
		return approval.Granted(g.GetServices(), g.GetOrigins(), g.GetPlace(), g.GetScheme(), g.GetAgents(), g.GetUnattended(), ends(g))
	})
	if len(to) == 0 {
		return "granted to no service"
	}
	return "granted to " + strings.Join(to, "; to ")
}

func ends(g *vaultv1.CredentialGrant) string {
	if g.GetEndsAt() == nil {
		return ""
	}
	return statement.FormatTime(g.GetEndsAt().AsTime())
}
