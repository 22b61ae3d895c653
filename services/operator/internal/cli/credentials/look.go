package credentials

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/fault"
)

func (a *app) list(ctx context.Context, s *cli.Session) (*vaultv1.ListCredentialsResponse, error) {
	return s.Vault.Credentials.ListCredentials(ctx, &vaultv1.ListCredentialsRequest{})
}

func (a *app) find(ctx context.Context, s *cli.Session, name string) (*vaultv1.Credential, error) {
	list, err := a.list(ctx, s)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range list.GetCredentials() {
		if c.GetName() == name {
			return c, nil
		}
		names = append(names, c.GetName())
	}
	return nil, cli.Usage(cli.DidYouMean(config.Suggest(name, names), "See: durward credential list"), "there is no credential %s", clean.Visible(name))
}

// ended returns the error of a call that ends something of a credential, and where there is none of that name, what there is. The vault
// decides first: no list that fails keeps anything from ending.
func (a *app) ended(ctx context.Context, s *cli.Session, name string, err error) error {
	if fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		if _, unknown := a.find(ctx, s, name); unknown != nil {
			return unknown
		}
	}
	return err
}

func (a *app) complete(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		if cmd.Name() == "grant" || cmd.Name() == "revoke" {
			return a.CompleteEntries("service")(cmd, nil, to)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return cli.CompleteAsked(a.App, cmd, args, func(ctx context.Context, s *cli.Session) ([]*vaultv1.Credential, error) {
		list, err := a.list(ctx, s)
		return list.GetCredentials(), err
	}, func(c *vaultv1.Credential) (id, about string) { return c.GetName(), c.GetVariable() })
}

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "The stored credentials, without their values",
		Example: "  durward credential list",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*vaultv1.ListCredentialsResponse, error) {
			return a.list(ctx, s)
		}, func(list *vaultv1.ListCredentialsResponse) {
			if list.GetSealed() {
				a.Out.Printf("%s\n", a.Out.Yellow("The stored credentials are sealed: services that need one are not started, and no agent reads what programs write once one was given away. Unseal them: "+a.Typed()+" vault unseal"))
			}
			if len(list.GetCredentials()) == 0 {
				a.Out.Printf("No credential is stored.\n")
				return
			}
			a.Out.Table([]string{"NAME", "GIVEN AS", "GRANTED TO", "VERSION", "AGE", "LAST USE"}, output.Each(list.GetCredentials(), func(c *vaultv1.Credential) []string {
				newest := c.GetVersions()[0]
				return []string{
					clean.Visible(c.GetName()), given(c), strings.Join(output.Each(c.GetGrants(), func(g *vaultv1.CredentialGrant) string {
						to := clean.Visible(strings.Join(append(g.GetServices(), g.GetOrigins()...), ", "))
						if a.over(g) {
							to += a.Out.Yellow(" (ended)")
						}
						return to
					}), ", "),
					fmt.Sprint(newest.GetVersion()), approval.Duration(a.Now().Sub(newest.GetAddedAt().AsTime())), a.lastUse(c),
				}
			}))
		}),
	}
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "One credential: its versions, and who got it",
		Example:           "  durward credential show hf-token",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, args []string) (*vaultv1.Credential, error) {
			return a.find(ctx, s, args[0])
		}, func(c *vaultv1.Credential) {
			a.Out.Printf("%s, as %s, %s\n", a.Out.Bold(clean.Visible(c.GetName())), given(c), grantedTo(c))
			for _, v := range c.GetVersions() {
				a.Out.Printf("  version %d, added %s by %s\n", v.GetVersion(), a.ago(v.GetAddedAt()), clean.Visible(v.GetAddedBy()))
			}
			for _, u := range c.GetUses() {
				a.Out.Printf("  %s got version %d %s%s\n", clean.Visible(u.GetService()), u.GetVersion(), a.ago(u.GetUsedAt()), a.Out.Yellow(a.outlived(c, u)))
			}
		}),
	}
}

// over reports whether a grant has ended by itself.
func (a *app) over(g *vaultv1.CredentialGrant) bool {
	return g.GetEndsAt() != nil && !a.Now().Before(g.GetEndsAt().AsTime())
}

// outlived says of a use that no grant is for any more: what runs since then may hold the value still. What was put into a request is held
// by nobody.
func (a *app) outlived(c *vaultv1.Credential, u *vaultv1.Use) string {
	if strings.Contains(u.GetService(), "://") {
		return ""
	}
	said := ", and is granted it no more: it may hold it until it is stopped"
	for _, g := range c.GetGrants() {
		switch named := slices.Contains(g.GetServices(), u.GetService()); {
		case named && !a.over(g):
			return ""
		case named:
			said = ", and its grant ended " + a.ago(g.GetEndsAt()) + ": it may hold it until it is stopped"
		}
	}
	return said
}

func given(c *vaultv1.Credential) string {
	if c.GetDelivery() == vaultv1.Delivery_DELIVERY_FILE {
		return "a file, at $" + clean.Visible(c.GetVariable())
	}
	return "$" + clean.Visible(c.GetVariable())
}

func (a *app) ago(at *timestamppb.Timestamp) string {
	return approval.Duration(a.Now().Sub(at.AsTime()).Truncate(time.Second)) + " ago"
}

func (a *app) lastUse(c *vaultv1.Credential) string {
	if len(c.GetUses()) == 0 {
		return "never"
	}
	last := slices.MaxFunc(c.GetUses(), func(x, y *vaultv1.Use) int { return x.GetUsedAt().AsTime().Compare(y.GetUsedAt().AsTime()) })
	return a.ago(last.GetUsedAt()) + " by " + clean.Visible(last.GetService())
}

func (a *app) revokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME [SERVICE|ORIGIN]",
		Short: "Take a credential from a service or an origin, or from all",
		Long: `From the moment that it returns nothing gets the credential by what was revoked. It needs no key: ending is always
safe. What runs keeps the value that it got, and is listed: stop it, and make the value worthless where it came from.`,
		Example:           "  durward credential revoke hf-token llm",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.complete,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			service := ""
			if len(args) == 2 {
				service = args[1]
			}
			answer, err := s.Vault.Credentials.RevokeCredential(ctx, &vaultv1.RevokeCredentialRequest{Name: args[0], Service: service})
			if err != nil {
				return a.ended(ctx, s, args[0], err)
			}
			return a.Show(answer, func() {
				a.Out.Printf("%s %s is revoked%s\n", a.Out.Green("✓"), clean.Visible(args[0]), cli.When(service != "", " from "+clean.Visible(service)))
				a.held(ctx, s, answer.GetHeld())
			})
		}),
	}
}

func (a *app) removeCommand() *cobra.Command {
	var version uint32
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Forget a credential, or one of its older values",
		Long: `Forgets a credential with all its values, or with --version one that is not the newest. It needs no key. What runs keeps
the value that it got, and is listed.`,
		Example:           "  durward credential remove hf-token --version 1",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			if err := a.Confirm(ctx, "Remove it? Nobody can bring it back.", yes); err != nil {
				return err
			}
			answer, err := s.Vault.Credentials.RemoveCredential(ctx, &vaultv1.RemoveCredentialRequest{Name: args[0], Version: version})
			if err != nil {
				return a.ended(ctx, s, args[0], err)
			}
			return a.Show(answer, func() {
				a.Out.Printf("%s %s%s is removed\n", a.Out.Green("✓"), cli.When(version != 0, fmt.Sprintf("version %d of ", version)), clean.Visible(args[0]))
				a.held(ctx, s, answer.GetHeld())
			})
		}),
	}
	cmd.Flags().Uint32Var(&version, "version", 0, "this version alone")
	cli.CompleteFlag(cmd, "version", cobra.NoFileCompletions)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// held says which services and servers got a value and may run with it still. What was put into a request is held by nobody.
func (a *app) held(ctx context.Context, s *cli.Session, uses []*vaultv1.Use) {
	list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
	for _, u := range uses {
		if strings.Contains(u.GetService(), "://") {
			continue
		}
		at := slices.IndexFunc(list.GetServices(), func(one *executorv1.ServiceSummary) bool { return one.GetServiceId() == u.GetService() })
		stop := a.Typed() + " stop "
		if err == nil && at < 0 {
			stop = a.Typed() + " server restart " // it is another's MCP server, of which egress alone knows whether it runs
		} else if err == nil && list.GetServices()[at].GetState() == executorv1.ServiceState_SERVICE_STATE_STOPPED {
			continue
		}
		a.Out.Printf("%s %s got version %d %s and may hold it still: %s%s\n", a.Out.Yellow("!"), clean.Visible(u.GetService()),
			u.GetVersion(), a.ago(u.GetUsedAt()), stop, clean.Visible(u.GetService()))
	}
}

func (a *app) unsealCommand() *cobra.Command {
	var stdin bool
	cmd := &cobra.Command{
		Use:   "unseal",
		Short: "Hand the vault the passphrase of the stored credentials",
		Long: `Asks for the passphrase that the stored credentials' keys are kept under, and hands it to the vault, which forgets it once
it has opened them. It is needed after each start of a vault whose vault.yaml says "credentials: {key: passphrase}". The
first passphrase is the one from then on.`,
		Example: "  durward vault unseal",
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
			list, err := a.list(ctx, s)
			if err != nil {
				return err
			}
			if !list.GetSealed() {
				return a.Show(&vaultv1.UnsealResponse{}, func() { a.Out.Printf("Nothing is sealed.\n") })
			}
			passphrase, err := a.passphrase(ctx, stdin, !list.GetPassphraseSet())
			if err != nil {
				return err
			}
			defer clear(passphrase)
			// A slow machine takes seconds to make a key of it.
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			answer, err := s.Vault.Credentials.Unseal(ctx, &vaultv1.UnsealRequest{Passphrase: passphrase})
			if err != nil {
				return err
			}
			return a.Show(answer, func() { a.Out.Printf("%s The stored credentials can be used.\n", a.Out.Green("✓")) })
		}),
	}
	cmd.Flags().BoolVar(&stdin, "stdin", false, "read the passphrase from standard input")
	return cmd
}

func (a *app) rotateKeysCommand() *cobra.Command {
	var stdin, upper bool
	cmd := &cobra.Command{
		Use:   "rotate-keys",
		Short: "Encrypt the stored credentials anew",
		Long: `Makes a new data key and encrypts every stored credential under it, while everything goes on.

With --upper the key above the data keys is replaced too. Where it lies in a file, a new file takes its place. Where systemd hands
it over, the new one comes as the credential durward-credentials-next, which the unit loads beside the other; once this has
returned, put it in the other's place. Where it is made of a passphrase, the new one is asked for; --stdin reads the present
one and the new one, a line each.`,
		Example: "  durward vault rotate-keys",
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
			list, err := a.list(ctx, s)
			if err != nil {
				return err
			}
			request := &vaultv1.RotateKeysRequest{Upper: upper}
			if list.GetPassphraseSet() {
				if request.Passphrase, err = a.passphrase(ctx, stdin, false); err != nil {
					return err
				}
				defer clear(request.GetPassphrase())
				if upper && stdin {
					present, next, ok := bytes.Cut(request.GetPassphrase(), []byte("\n"))
					if !ok {
						return cli.Usage("Two lines: the present passphrase and the new one.", "the new passphrase is missing")
					}
					request.Passphrase, request.NextPassphrase = present, next
				} else if upper {
					if request.NextPassphrase, err = a.passphrase(ctx, false, true); err != nil {
						return err
					}
					defer clear(request.GetNextPassphrase())
				}
			}
			answer, err := s.Vault.Credentials.RotateKeys(ctx, request)
			if err != nil {
				return err
			}
			return a.Show(answer, func() {
				a.Out.Printf("%s %s under a new key.\n", a.Out.Green("✓"), clean.Count(answer.GetValues(), "value is", "values are"))
			})
		}),
	}
	cmd.Flags().BoolVar(&stdin, "stdin", false, "read the passphrase from standard input")
	cmd.Flags().BoolVar(&upper, "upper", false, "replace the key above the data keys too")
	return cmd
}

// passphrase reads it, twice where it is new and a person types it.
func (a *app) passphrase(ctx context.Context, stdin, fresh bool) ([]byte, error) {
	if stdin {
		return a.value(ctx, source{stdin: true})
	}
	first, err := ask(ctx, "Passphrase of the stored credentials: ", "the passphrase", "--stdin")
	if err != nil || !fresh {
		return first, err
	}
	again, err := ask(ctx, "Once more, since it is a new one: ", "the passphrase", "--stdin")
	if err != nil {
		return nil, err
	}
	defer clear(again)
	if string(first) != string(again) || len(first) == 0 {
		return nil, cli.Usage("Try again.", "the two are not the same, or empty")
	}
	return first, nil
}
