package clients

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/security"
)

// maxOverlap is how long two credentials of a client may be taken at once.
const maxOverlap = 30 * 24 * time.Hour

func (a *app) clientCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Who may connect: agents and programs",
		Long: `Adds, lists and takes away clients. A client has a token (the vault keeps its SHA-256 alone) and, unless it
is a bearer client, a key of its own with which its bridge signs every request, so that a hostile gateway
cannot use its standing authority.`,
	}
	cmd.AddCommand(a.clientAddCommand(), a.clientAddToolCommand(), a.clientListCommand(), a.clientRotateCommand(), a.clientRevokeCommand(), a.clientConnectCommand())
	return cmd
}

func (a *app) clientAddCommand() *cobra.Command {
	var bearer, yes bool
	c := client.Client{}
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Let a client in",
		Long: `Makes a token and, unless --bearer is given, a key, in files that only you can read, and enters the client
in clients.yaml. The vault takes it up within a second.

A messaging channel's name is part of who the client is: --channel messaging:telegram. Such a client says with each
request who asks in which room, and may only look.
` + cli.SignedChange,
		Example: "  durward client add claude-code\n  durward client add dashboard --bearer --channel api --tier READ\n" +
			"  durward client add orchestrator --user alice --agent planner,coder",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.Config()
			if err != nil {
				return err
			}
			c.ID = args[0]
			if strings.HasPrefix(c.Channel, "messaging:") && !cmd.Flags().Changed("tier") {
				c.TierCeiling = "READ"
			}
			if err := a.addClient(cmd.Context(), cfg, c, bearer, yes); err != nil {
				return err
			}
			folder := a.Home.Client(c.ID)
			return a.Show(map[string]any{"client": c.ID, "folder": folder, "key_bound": !bearer}, func() {
				a.Out.Printf("%s client %s may connect, up to %s.\n  token  %s\n", a.Out.Green("✓"), c.ID, c.TierCeiling, filepath.Join(folder, client.FileToken))
				if bearer {
					a.Out.Printf("  url    %s\n  try    curl -H \"Authorization: Bearer $(cat %s)\" -H 'Accept: application/json, text/event-stream' \\\n"+
						"           -H 'Content-Type: application/json' -d '"+hello+"' %s\n",
						clean.Visible(cfg.MCPURL), cli.ShellWord(filepath.Join(folder, client.FileToken)), clean.Visible(cfg.MCPURL))
					return
				}
				a.Out.Printf("  key    %s\n  bridge %s mcp --client %s\n", filepath.Join(folder, client.FileKey), a.Elsewhere(), c.ID)
			})
		},
	}
	cmd.Flags().StringVar(&c.Channel, "channel", "cli", "how it reaches us: cli, desktop_ui, api or messaging:NAME")
	cmd.Flags().StringVar(&c.TierCeiling, "tier", "WRITE", "the most that it may ask for: READ, WRITE or DESTRUCTIVE")
	cmd.Flags().StringVar(&c.User, "user", "", "whose client it is: the name of a folder of users/ in the security configuration")
	cmd.Flags().StringSliceVar(&c.Agents, "agent", nil, "the names that it may give its own agents")
	cmd.Flags().BoolVar(&bearer, "bearer", false, "a token alone, for programs that cannot run the bridge")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask; the signing key is still needed")
	cli.CompleteFlag(cmd, "channel", cli.OneOf("cli", "desktop_ui", "api", "messaging:"))
	return cmd
}

// hello is the first message of a client: any other one is refused before a session is open.
const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}`

// addClient makes a client's token and key and enters it; c has everything but those.
func (a *app) addClient(ctx context.Context, cfg installdir.Config, c client.Client, bearer, yes bool) error {
	folder := a.Home.Client(c.ID)
	return a.enterClient(ctx, cfg, c, yes, func(c *client.Client) error {
		credential, err := client.Create(folder, c.ID, c.Channel, c.TierCeiling, bearer)
		c.TokenSHA256, c.Key = credential.TokenSHA256, credential.Key
		return err
	}, func() error { return client.Discard(folder) })
}

// enterClient makes a client's files and enters it; c has everything but its credential, which create adds. Files are made only for a client
// that can be entered, and go again with one that was not.
func (a *app) enterClient(ctx context.Context, cfg installdir.Config, c client.Client, yes bool, create func(*client.Client) error, discard func() error) error {
	if err := client.CheckName(c.ID); err != nil {
		return cli.Usage("", "%v", err)
	}
	counted := a.countClients(ctx)
	made, what := false, "a token"
	if c.Identity != "" {
		what = "a certificate"
	}
	_, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "client add " + c.ID, Yes: yes, Made: what, Plans: func() ([]*signedchange.Plan, error) {
		return planClients(cfg, c.ID, func(before []byte) ([]byte, error) {
			trial := c
			if c.Identity == "" {
				trial.TokenSHA256 = strings.Repeat("0", 64) // a digest of nothing
			}
			if _, err := client.Add(before, trial); err != nil {
				return nil, err
			}
			if err := create(&c); err != nil {
				return nil, cli.Failed("Remove that folder if it is left over.", "%v", err)
			}
			made = true
			return client.Add(before, c)
		})
	}, Before: func() error {
		if c.User == "" && needsUser(cfg, c.ID) {
			a.Out.Remark("%s", a.Out.Yellow("Careful: four eyes are needed here ("+security.FourEyes+"), and "+c.ID+" has no user: nobody can approve what it asks. Name whose it is: --user"))
		}
		return nil
	}})
	if err != nil && made && !entered(cfg, c) {
		return errors.Join(err, discard())
	}
	if err != nil {
		return err
	}
	// The vault looks at the file every second: who connects right after this command should be let in.
	for deadline := time.Now().Add(takeUpPatience); counted >= 0 && a.countClients(ctx) == counted && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// needsUser reports whether four eyes bind a client without a user.
func needsUser(cfg installdir.Config, id string) bool {
	state, _ := security.Look(cfg.Security(), nil)
	return state != nil && state.Values(id, "").FourEyes
}

// planClients works a change of clients.yaml out.
func planClients(cfg installdir.Config, name string, edit func([]byte) ([]byte, error)) ([]*signedchange.Plan, error) {
	return signedchange.PrepareOne(cfg.Clients, signedchange.FileClients, func(before []byte) ([]byte, error) {
		after, err := edit(before)
		if _, ours := errors.AsType[*cli.Problem](err); err != nil && !ours {
			return nil, clientProblem(err, name, cfg.Clients)
		}
		return after, err
	})
}

// entered reports whether the client stands in the file with its credential.
func entered(cfg installdir.Config, c client.Client) bool {
	list, err := client.Read(cfg.Clients)
	return err == nil && slices.ContainsFunc(list, func(other client.Client) bool { return other.ID == c.ID && other.TokenSHA256 == c.TokenSHA256 })
}

func (a *app) clientRotateCommand() *cobra.Command {
	var overlap time.Duration
	var yes bool
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Give a client a new token and key",
		Long: `Makes a new token, and a new key if the client has one, and puts them in the place of the old ones in one step.
The old ones are taken until --overlap is over, and the sessions that they opened end then. Bridges (durward mcp) that
run take the new ones up by themselves; no agent program has to be told. --overlap 0 ends the old ones at once: for a
token that somebody else may have.
` + cli.SignedChange,
		Example:           "  durward client rotate claude-code\n  durward client rotate dashboard --overlap 0",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteClients,
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			if overlap < 0 || overlap > maxOverlap {
				return cli.Usage("", "--overlap is 0 to %d days", maxOverlap/(24*time.Hour))
			}
			return a.rotateClient(ctx, cfg, args[0], overlap, yes)
		}),
	}
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old token and key are taken beside the new ones")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask; the signing key is still needed")
	cli.CompleteFlag(cmd, "overlap", cli.OneOf("0", "1h", "24h", "168h"))
	return cmd
}

func (a *app) rotateClient(ctx context.Context, cfg installdir.Config, name string, overlap time.Duration, yes bool) error {
	if err := client.CheckName(name); err != nil {
		return cli.Usage("", "%v", err)
	}
	folder := a.Home.Client(name)
	var until time.Time
	if overlap > 0 {
		until = a.Now().Add(overlap).UTC().Truncate(time.Second)
	}
	var fresh *client.Fresh
	_, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "client rotate " + name, Yes: yes, Made: "a token", Plans: func() ([]*signedchange.Plan, error) {
		return planClients(cfg, name, func(before []byte) (_ []byte, err error) {
			if err = client.Rotatable(before, name); err != nil {
				return nil, err
			}
			if fresh, err = client.Renew(folder, name); err != nil {
				return nil, cli.Failed("Add another client: durward client add", "the client %s has no usable token here: %s", name, clean.Line(err.Error(), 300))
			}
			return client.Rotate(before, name, client.Rotation{TokenSHA256: fresh.TokenSHA256, Key: fresh.Key, Until: until})
		})
	}, Ready: func() error {
		if !until.IsZero() {
			return nil
		}
		// The old one ends with the write: a bridge that is refused then must find the new one.
		if err := fresh.Place(); err != nil {
			return cli.Failed("Nothing was changed.", "the new token could not be put in its place: %s", clean.Line(err.Error(), 300))
		}
		return nil
	}})
	if fresh == nil {
		return err
	}
	if err != nil && !entered(cfg, client.Client{ID: name, TokenSHA256: fresh.TokenSHA256}) {
		return errors.Join(err, fresh.Drop())
	}
	if used := fresh.Use(); used != nil {
		return errors.Join(err, cli.Failed("Its programs go on with the old one for as long as it is taken. Rotate again.",
			"the new token was entered and could not be put in its place: %s", clean.Line(used.Error(), 300)))
	}
	if err != nil {
		return err
	}
	value := map[string]any{"client": name, "folder": folder}
	if !until.IsZero() {
		value["old_until"] = until
	}
	return a.Show(value, func() {
		fresher, old := "a new token", "the old one is"
		if fresh.Key != "" {
			fresher, old = "a new token and key", "the old ones are"
		}
		end := "not taken any more"
		if !until.IsZero() {
			end = "taken until " + until.Local().Format("2006-01-02 15:04")
		}
		a.Out.Printf("%s %s has %s; %s %s.\n", a.Out.Green("✓"), name, fresher, old, end)
		if fresh.Key == "" {
			a.Out.Printf("  Programs that hold the token in their environment need the new one: %s\n", filepath.Join(folder, client.FileToken))
		}
	})
}

// takeUpPatience is how long a new client is waited for at the vault.
const takeUpPatience = 2 * time.Second

// countClients returns how many clients the vault lets in, or -1 when it cannot be asked.
func (a *app) countClients(ctx context.Context) int {
	count := -1
	_ = a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		status, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
		if err == nil {
			count = int(status.GetClients())
		}
		return err
	})
	return count
}

func clientProblem(err error, name, file string) error {
	switch {
	case errors.Is(err, edit.ErrLayout):
		return cli.Failed("The file is "+file+".", "%v", err)
	case errors.Is(err, client.ErrUnknown):
		return cli.Usage("See: durward client list", "there is no client %s", clean.Visible(name))
	case errors.Is(err, client.ErrExists):
		return cli.Usage("See: durward client list", "%v", err)
	default:
		return cli.Usage("The file is "+file+".", "%s", clean.Line(err.Error(), 500))
	}
}

func (a *app) clientListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Who may connect",
		Example: "  durward client list",
		RunE: a.Configured(func(_ context.Context, cfg installdir.Config, _ []string) error {
			list, err := readClients(cfg)
			if err != nil {
				return err
			}
			type row struct {
				client.Client
				KeyBound bool `json:"key_bound"`
			}
			rows := output.Each(list, func(c client.Client) row { return row{c, c.Key != "" || c.Identity != ""} })
			return a.Show(map[string]any{"clients": rows}, func() {
				if len(rows) == 0 {
					a.Out.Printf("No client yet: %[1]s client connect claude-code, or %[1]s client add NAME\n", a.Typed())
					return
				}
				a.Out.Table([]string{"CLIENT", "KIND", "CHANNEL", "UP TO", "USER", "STATE"}, output.Each(rows, func(c row) []string {
					kind, state := "bearer", "may connect"
					switch {
					case c.Identity != "":
						kind = "internal"
					case c.KeyBound:
						kind = "key-bound"
					}
					if c.Previous.Until != "" {
						state += ", old token until " + clean.Line(c.Previous.Until, 40)
					}
					if c.Revoked {
						state = "revoked"
					}
					return []string{clean.Line(c.ID, 64), kind, clean.Line(c.Channel, 80), clean.Line(c.TierCeiling, 16), clean.Line(c.User, 64), state}
				}))
			})
		}),
	}
}

func readClients(cfg installdir.Config) ([]client.Client, error) {
	list, err := client.Read(cfg.Clients)
	if err != nil {
		return nil, cli.Usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 1000))
	}
	return list, nil
}

func (a *app) clientRevokeCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Lock a client out",
		Long: `Marks the client as revoked. When the command returns, its sessions have ended and nothing begins any more
that it asked for. The entry stays, so that the name
is not used again and history can be read. The certificate of an internal program is revoked too, and removed.

The difference is shown, and signed and announced where a key can be asked for. Taking a right away needs neither: without a
terminal or a key the client is locked out all the same, and the record says that nobody signed.`,
		Example:           "  durward client revoke claude-code",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteClients,
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			name := args[0]
			out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{
				Action: "client revoke " + clean.Line(name, 64), Yes: yes, Unsigned: true, Plans: func() ([]*signedchange.Plan, error) {
					plans, err := planClients(cfg, name, func(before []byte) ([]byte, error) { return client.Revoke(before, name) })
					if err != nil {
						return nil, err
					}
					return a.planTool(cfg, name, plans)
				},
			})
			if err == nil {
				err = a.removeTool(cfg, name)
			}
			if err := a.ReportRules(out, err, clean.Visible(name)+" is revoked"); err != nil {
				return err
			}
			return a.EndedAtSinks(ctx)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing; a protected key asks for its passphrase all the same")
	return cmd
}
