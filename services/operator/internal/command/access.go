package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// recordPatience bounds how long a change of a file waits for audit; what cannot be sent is kept and sent later.
const recordPatience = 2 * time.Second

// changeFile replaces a human-owned file by what edit makes of it, atomically and one change at a time, and records the
// change with the digests before and after (CFG-4).
func (a *app) changeFile(ctx context.Context, cfg home.Config, path, action string, edit func([]byte) ([]byte, error)) error {
	release, err := a.home.Lock("config")
	if errors.Is(err, home.ErrLocked) {
		return failed("Try again.", "another durward command is changing the configuration")
	}
	if err != nil {
		return err
	}
	defer func() { _ = release() }() // ends with this process at the latest
	before, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	after, err := edit(before)
	if err != nil {
		return err
	}
	if bytes.Equal(before, after) {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := home.WriteFile(path, after, info.Mode().Perm()); err != nil {
		return err
	}
	was, is := canonical.Digest(before), canonical.Digest(after)
	a.record(ctx, cfg, &auditv1.Body{
		Action: action, Summary: action, Persistent: true, DecisionSource: "operator:" + cfg.Operator,
		Details: map[string]string{"file": filepath.Base(path), "digest_before": canonical.FormatDigest(was[:]), "digest_after": canonical.FormatDigest(is[:])},
	})
	return nil
}

// record writes a change to the log, or keeps it until audit can be reached; the change itself is made already.
func (a *app) record(ctx context.Context, cfg home.Config, body *auditv1.Body) {
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	sent, err := a.tryRecord(ctx, cfg, body)
	a.requestID = ""
	switch {
	case err != nil:
		a.out.Remark("%s", a.out.Red("the change is made and could not be recorded: "+publicText(err)))
	case !sent:
		a.out.Remark("%s", a.out.Dim("audit cannot be reached: the change is made and will be recorded when it can"))
	}
}

func (a *app) tryRecord(ctx context.Context, cfg home.Config, body *auditv1.Body) (bool, error) {
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return false, err
	}
	defer s.close()
	l, err := history.Open(ctx, history.Config{
		Client: s.Audit.Log, Audit: cfg.Audit.Identity, Writer: s.Identity().String(), Trust: s.Trust, StateDir: cfg.StateDir, Now: a.now,
	})
	if err != nil {
		return false, err
	}
	sent, err := l.Write(ctx, auditv1.Kind_KIND_CONFIG_CHANGED, a.requestID, body)
	return sent, errors.Join(err, l.Close())
}

func (a *app) clientCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Who may connect: agents and programs",
		Long: `Adds, lists and takes away clients. A client has a token (the vault keeps its SHA-256 alone) and, unless it
is a bearer client, a key of its own with which its bridge signs every request, so that a hostile gateway
cannot use its standing authority.`,
	}
	cmd.AddCommand(a.clientAddCommand(), a.clientListCommand(), a.clientRevokeCommand(), a.clientConnectCommand())
	return cmd
}

func (a *app) clientAddCommand() *cobra.Command {
	var channel, tier string
	var bearer bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Let a client in",
		Long: `Makes a token and, unless --bearer is given, a key, in files that only you can read, and enters the client
in clients.yaml. The vault takes it up within a second.`,
		Example: "  durward client add claude-code\n  durward client add dashboard --bearer --channel api --tier READ",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			if err := a.addClient(cmd.Context(), cfg, args[0], channel, tier, bearer); err != nil {
				return err
			}
			folder := a.home.Client(args[0])
			if a.json {
				return a.out.Value(map[string]any{"client": args[0], "folder": folder, "key_bound": !bearer})
			}
			a.out.Printf("%s client %s may connect, up to %s.\n  token  %s\n", a.out.Green("✓"), args[0], tier, filepath.Join(folder, client.FileToken))
			if !bearer {
				a.out.Printf("  key    %s\n  bridge durward mcp --client %s\n", filepath.Join(folder, client.FileKey), args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&channel, "channel", "cli", "how it reaches us: cli, desktop_ui, api or messaging:NAME")
	cmd.Flags().StringVar(&tier, "tier", "WRITE", "the most that it may ask for: READ, WRITE or DESTRUCTIVE")
	cmd.Flags().BoolVar(&bearer, "bearer", false, "a token alone, for programs that cannot run the bridge")
	return cmd
}

func (a *app) addClient(ctx context.Context, cfg home.Config, name, channel, tier string, bearer bool) error {
	if err := client.CheckName(name); err != nil {
		return usage("", "%v", err)
	}
	counted := a.countClients(ctx)
	err := a.changeFile(ctx, cfg, cfg.Clients, "client add "+name, func(before []byte) ([]byte, error) {
		// A trial with a digest of nothing: files are made only for a client that can be entered.
		trial := client.Client{ID: name, TokenSHA256: strings.Repeat("0", 64), Channel: channel, TierCeiling: tier}
		if _, err := client.Add(before, trial); err != nil {
			return nil, clientProblem(err, name, cfg.Clients)
		}
		folder := a.home.Client(name)
		made, err := client.Create(folder, name, channel, tier, bearer)
		if err != nil {
			return nil, failed("Remove that folder if it is left over.", "%v", err)
		}
		after, err := client.Add(before, made)
		if err != nil {
			return nil, errors.Join(clientProblem(err, name, cfg.Clients), client.Discard(folder))
		}
		return after, nil
	})
	if err != nil {
		return err
	}
	// The vault looks at the file every second: who connects right after this command should be let in.
	for deadline := time.Now().Add(takeUpPatience); counted >= 0 && a.countClients(ctx) == counted && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// takeUpPatience is how long a new client is waited for at the vault.
const takeUpPatience = 2 * time.Second

// countClients returns how many clients the vault lets in, or -1 when it cannot be asked.
func (a *app) countClients(ctx context.Context) int {
	ctx, s, err := a.connect(ctx)
	if err != nil {
		return -1
	}
	defer s.close()
	status, err := s.Vault.Control.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	if err != nil {
		return -1
	}
	return int(status.GetClients())
}

func clientProblem(err error, name, file string) error {
	switch {
	case errors.Is(err, client.ErrLayout):
		return failed("The file is "+file+".", "%v", err)
	case errors.Is(err, client.ErrUnknown):
		return usage("See: durward client list", "there is no client %s", clean.Visible(name))
	case errors.Is(err, client.ErrExists):
		return usage("See: durward client list", "%v", err)
	default:
		return usage("The file is "+file+".", "%s", clean.Line(err.Error(), 500))
	}
}

func (a *app) clientListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Who may connect",
		Example: "  durward client list",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			list, err := client.Read(cfg.Clients)
			if err != nil {
				return usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 1000))
			}
			type row struct {
				client.Client
				KeyBound bool `json:"key_bound"`
			}
			rows := make([]row, 0, len(list))
			cells := make([][]string, 0, len(list))
			for _, c := range list {
				rows = append(rows, row{c, c.Key != ""})
				kind, state := "bearer", "may connect"
				if c.Key != "" {
					kind = "key-bound"
				}
				if c.Revoked {
					state = "revoked"
				}
				cells = append(cells, []string{clean.Line(c.ID, 64), kind, clean.Line(c.Channel, 80), clean.Line(c.TierCeiling, 16), state})
			}
			if a.json {
				return a.out.Value(map[string]any{"clients": rows})
			}
			if len(cells) == 0 {
				a.out.Printf("No client yet: durward client connect claude-code, or durward client add NAME\n")
				return nil
			}
			a.out.Table([]string{"CLIENT", "KIND", "CHANNEL", "UP TO", "STATE"}, cells)
			return nil
		},
	}
}

func (a *app) clientRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME",
		Short: "Lock a client out",
		Long: `Marks the client as revoked; the vault ends its sessions within a second. The entry stays, so that the name
is not used again and history can be read.`,
		Example:           "  durward client revoke claude-code",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeClients,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			name := args[0]
			err = a.changeFile(cmd.Context(), cfg, cfg.Clients, "client revoke "+clean.Line(name, 64), func(before []byte) ([]byte, error) {
				after, err := client.Revoke(before, name)
				if err != nil {
					return nil, clientProblem(err, name, cfg.Clients)
				}
				return after, nil
			})
			if err != nil {
				return err
			}
			a.out.Printf("%s is revoked.\n", name)
			return nil
		},
	}
}

func (a *app) clientConnectCommand() *cobra.Command {
	var overHTTP, dryRun, yes, user bool
	var name, tier string
	cmd := &cobra.Command{
		Use:   "connect claude-code",
		Short: "Write an agent program's configuration",
		Long: `Lets the client in if need be, and writes Durward into Claude Code's configuration: .mcp.json in the current
folder, or with --user your ~/.claude.json. The change is shown first. Nothing secret is written there: the
stdio bridge (durward mcp) reads the token and key from files that only you can read.

A client that is let in so may ask for everything, switches of modes included, and each change waits for your
signature; --tier WRITE keeps from it what takes something away.

With --http the configuration names the URL, and the token is read from the environment variable
DURWARD_TOKEN; such a client is a bearer client.`,
		Example:   "  durward client connect claude-code\n  durward client connect claude-code --dry-run\n  durward client connect claude-code --user --yes",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"claude-code"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				name = args[0]
				if overHTTP {
					name += "-http"
				}
			}
			return a.connectClient(cmd.Context(), connectOptions{name: name, tier: tier, overHTTP: overHTTP, dryRun: dryRun, yes: yes, user: user})
		},
	}
	cmd.Flags().BoolVar(&overHTTP, "http", false, "connect by URL instead of by the bridge")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the change and make none")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&user, "user", false, "write ~/.claude.json instead of .mcp.json here")
	cmd.Flags().StringVar(&name, "name", "", "the client's name (default claude-code)")
	cmd.Flags().StringVar(&tier, "tier", "DESTRUCTIVE", "the most that a new client may ask for: READ, WRITE or DESTRUCTIVE")
	return cmd
}

type connectOptions struct {
	name, tier                  string
	overHTTP, dryRun, yes, user bool
}

func (a *app) connectClient(ctx context.Context, opts connectOptions) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if err := client.CheckName(opts.name); err != nil {
		return usage("", "%v", err)
	}
	path, err := a.claudeFile(opts.user)
	if err != nil {
		return err
	}
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("configuration of Claude Code: %w", err)
	}
	var after []byte
	if opts.overHTTP {
		after, err = client.HTTP(before, cfg.MCPURL)
	} else {
		var program string
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		after, err = client.Stdio(before, program, a.home.Dir, opts.name)
	}
	if err != nil {
		return usage("Nothing was changed. Correct the file, or move it away.", "%s cannot be edited: %v", path, err)
	}
	known, err := a.knownClient(cfg, opts.name)
	if err != nil {
		return err
	}
	if !known {
		a.out.Printf("Lets in the client %s (up to %s), with its token and key in %s.\n", opts.name, opts.tier, a.home.Client(opts.name))
	}
	diff := client.Diff(path, before, after)
	if diff == "" {
		diff = path + " is as it should be already.\n"
	}
	a.out.Printf("%s", clean.Block(diff, 1<<20))
	if opts.dryRun {
		a.out.Printf("Nothing was changed.\n")
		return nil
	}
	if known && bytes.Equal(before, after) {
		return nil
	}
	if err := a.confirm(ctx, "Make this change?", opts.yes); err != nil {
		return err
	}
	if !known {
		if err := a.addClient(ctx, cfg, opts.name, "cli", opts.tier, opts.overHTTP); err != nil {
			return err
		}
	}
	if err := home.WriteFile(path, after, fileMode(path, opts.user)); err != nil {
		return err
	}
	a.out.Printf("%s Claude Code will find Durward at its next start.\n", a.out.Green("✓"))
	if opts.overHTTP {
		a.out.Printf("  Start it with the token: export %s=\"$(cat %s)\"\n", client.TokenVariable, shellWord(a.home.Client(opts.name, client.FileToken)))
	}
	return nil
}

// knownClient reports whether the client may connect and its files are here.
func (a *app) knownClient(cfg home.Config, name string) (bool, error) {
	list, err := client.Read(cfg.Clients)
	if err != nil {
		return false, usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 1000))
	}
	for _, c := range list {
		if c.ID != name {
			continue
		}
		if c.Revoked {
			return false, denied("Give another one: --name", "the client %s was revoked", name)
		}
		if _, err := client.LoadCredentials(a.home.Client(name)); err != nil {
			return false, failed("Give another one: --name", "the client %s is there, and its token is not: %v", name, err)
		}
		return true, nil
	}
	return false, nil
}

func (a *app) claudeFile(user bool) (string, error) {
	if user {
		folder, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("home folder: %w", err)
		}
		return filepath.Join(folder, ".claude.json"), nil
	}
	folder, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("current folder: %w", err)
	}
	return filepath.Join(folder, ".mcp.json"), nil
}

// fileMode keeps a file's mode; a new project file may be read by all, as others beside it.
func fileMode(path string, user bool) os.FileMode {
	if info, err := os.Stat(path); err == nil {
		return info.Mode().Perm()
	}
	if user {
		return 0o600
	}
	return 0o644
}

var operatorName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

func (a *app) operatorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Who may approve: operators' signing keys",
		Long: `Edits trust/allowed_signers, the file in which every process looks up whose signature counts. Each process
takes a change up within a second.`,
	}
	add := &cobra.Command{
		Use:     "add NAME KEYFILE.pub",
		Short:   "Let a person approve with this key",
		Example: "  durward operator add bob ~/bob_ed25519.pub",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return a.addOperator(cmd.Context(), cfg, args[0], args[1])
		},
	}
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Who may approve",
		RunE:    func(*cobra.Command, []string) error { return a.listOperators() },
	}
	revoke := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Take a person's right to approve away",
		Long: `Removes every key of the person from allowed_signers. On an installed host (durward install) the person's
certificate is revoked and removed too, the Unix user leaves Durward's groups, and durward install brings
neither back unless it is given --operator USER. What they signed before stays in the log; "durward
audit verify" then says that the signer is no longer known.`,
		Example: "  durward operator revoke bob",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return a.revokeOperator(cmd.Context(), cfg, args[0])
		},
	}
	cmd.AddCommand(add, list, revoke)
	return cmd
}

func (a *app) addOperator(ctx context.Context, cfg home.Config, name, file string) error {
	if !operatorName.MatchString(name) {
		return usage("", "an operator's name is a-z, 0-9, _ and -, at most 32, beginning with a letter or digit")
	}
	key, err := keys.ReadPublic(file)
	if err != nil {
		return usage("Give the .pub file of an OpenSSH key.", "%s", clean.Line(err.Error(), 300))
	}
	if !strings.HasSuffix(key.Type(), "ed25519") && key.Type() != ssh.KeyAlgoSKED25519 && key.Type() != ssh.KeyAlgoSKECDSA256 {
		return usage("Make one: ssh-keygen -t ed25519 (or ed25519-sk for a security key).", "keys of type %s are not accepted", clean.Visible(key.Type()))
	}
	err = a.changeFile(ctx, cfg, filepath.Join(cfg.TrustDir, trust.FileAllowedSigners), "operator add "+name, func(before []byte) ([]byte, error) {
		signers, err := trust.ParseAllowedSigners(before)
		if err != nil {
			return nil, usage("Correct trust/allowed_signers first.", "%s", clean.Line(err.Error(), 300))
		}
		for _, s := range signers.All() {
			if bytes.Equal(s.Key.Marshal(), key.Marshal()) {
				return nil, usage("", "%s holds this key already", clean.Visible(s.Operator))
			}
		}
		if len(before) > 0 && before[len(before)-1] != '\n' {
			before = append(bytes.Clone(before), '\n')
		}
		return append(before, []byte(trust.FormatSigner(name, key, statement.Namespace)+"\n")...), nil
	})
	if err != nil {
		return err
	}
	a.out.Printf("%s %s may approve with %s.\n", a.out.Green("✓"), name, ssh.FingerprintSHA256(key))
	return nil
}

func (a *app) listOperators() error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(cfg.TrustDir, trust.FileAllowedSigners))
	if err != nil {
		return fmt.Errorf("allowed signers: %w", err)
	}
	signers, err := trust.ParseAllowedSigners(raw)
	if err != nil {
		return usage("Correct trust/allowed_signers.", "%s", clean.Line(err.Error(), 300))
	}
	type row struct {
		Operator    string `json:"operator"`
		Type        string `json:"type"`
		Fingerprint string `json:"fingerprint"`
	}
	rows, cells := []row{}, [][]string{}
	for _, s := range signers.All() {
		r := row{s.Operator, s.Key.Type(), ssh.FingerprintSHA256(s.Key)}
		rows = append(rows, r)
		cells = append(cells, []string{clean.Visible(r.Operator), r.Type, r.Fingerprint})
	}
	if a.json {
		return a.out.Value(map[string]any{"operators": rows})
	}
	a.out.Table([]string{"OPERATOR", "KEY", "FINGERPRINT"}, cells)
	return nil
}

func (a *app) revokeOperator(ctx context.Context, cfg home.Config, name string) error {
	installed := cfg.TrustDir == install.TrustDir
	if installed && os.Geteuid() != 0 {
		return denied("sudo durward operator revoke "+clean.Line(name, 64), "who may approve is root's to say")
	}
	known := installed && operatorName.MatchString(name) && install.Knows("/", name)
	err := a.changeFile(ctx, cfg, filepath.Join(cfg.TrustDir, trust.FileAllowedSigners), "operator revoke "+clean.Line(name, 64), func(before []byte) ([]byte, error) {
		var after []byte
		left := 0
		for line := range bytes.Lines(before) {
			first, _, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
			if first == name {
				continue
			}
			if first != "" && !strings.HasPrefix(first, "#") {
				left++
			}
			after = append(after, line...)
		}
		if len(after) == len(before) && known {
			return before, nil // never let in, or half revoked: the rest goes on
		}
		if len(after) == len(before) {
			return nil, usage("See: durward operator list", "there is no operator %s", clean.Visible(name))
		}
		if left == 0 {
			return nil, usage("Add another one first: durward operator add NAME KEYFILE.pub", "%s is the last operator: nobody could approve or resume any more", clean.Visible(name))
		}
		return after, nil
	})
	if err == nil && known {
		err = a.revokeInstalled(ctx, cfg, name)
	}
	if err != nil {
		return err
	}
	a.out.Printf("%s may no longer approve.\n", name)
	if known {
		a.out.Printf("Nor connect: the certificate is revoked, and the next session of the Unix user is in none of Durward's groups.\n" +
			"End the sessions that are open: loginctl terminate-user USER\n")
	}
	return nil
}

// revokeInstalled takes away what an installation of this host gave to an operator beside the right to approve.
func (a *app) revokeInstalled(ctx context.Context, cfg home.Config, name string) error {
	id, err := install.OperatorIdentity(name)
	if err != nil {
		return err
	}
	err = a.changeFile(ctx, cfg, filepath.Join(cfg.TrustDir, trust.FileRevoked), "operator revoke "+name+": identity", func(before []byte) ([]byte, error) {
		after, err := install.Ban(before, id)
		if err != nil {
			return nil, failed("Enter it there by hand, and run the command again: "+id, "trust/%s: %s", trust.FileRevoked, clean.Line(err.Error(), 300))
		}
		return after, nil
	})
	if err != nil {
		return err
	}
	if err := install.Revoke(ctx, "/", name, runProgram); err != nil {
		return failed("Correct it and run the command again.", "%s", clean.Block(err.Error(), 2000))
	}
	return nil
}

func (a *app) certCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "The processes' certificates",
		Long:  `Certificates live 24 hours. "durward up" renews them by itself at half their life.`,
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "Who each certificate is for, and when it ends",
		RunE: func(*cobra.Command, []string) error {
			if _, err := a.config(); err != nil {
				return err
			}
			return a.certStatus()
		},
	}
	renew := &cobra.Command{
		Use:   "renew",
		Short: "Issue new certificates now",
		Long:  "Issues a new certificate to every process and to this program; running processes take them up within a second.",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			renewed, err := a.home.RenewCertificates(cfg.Operator, a.now(), true)
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Value(map[string]any{"renewed": renewed})
			}
			a.out.Printf("%s renewed: %s\n", a.out.Green("✓"), strings.Join(renewed, ", "))
			return nil
		},
	}
	cmd.AddCommand(status, renew)
	return cmd
}

func (a *app) certStatus() error {
	certificates := a.home.Certificates()
	now := a.now()
	if a.json {
		return a.out.Value(map[string]any{"certificates": certificates})
	}
	rows := make([][]string, 0, len(certificates))
	bad := 0
	for _, c := range certificates {
		left := a.out.Red(c.Problem)
		switch {
		case c.Problem != "":
			bad++
		case now.After(c.NotAfter):
			bad++
			left = a.out.Red("expired " + approval.Duration(now.Sub(c.NotAfter)) + " ago")
		default:
			left = approval.Duration(c.NotAfter.Sub(now))
		}
		rows = append(rows, []string{c.Role, c.Identity, left})
	}
	a.out.Table([]string{"PROCESS", "IDENTITY", "EXPIRES IN"}, rows)
	if bad > 0 {
		return failed("Issue new ones: durward cert renew", "%d of %d certificates cannot be used", bad, len(certificates))
	}
	return nil
}

// programVersion asks a server program for its version.
func programVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b, err := exec.CommandContext(ctx, path, "-version").Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	return clean.Line(string(b), 100), nil
}
