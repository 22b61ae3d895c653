package rules

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "The settings that bind agents, and where each comes from",
		Long: `Shows and changes the security configuration: settings in layers, built in → system → user → project.
A user's settings go over the system's, for that user's clients; a project's count only where they are tighter,
once you trusted its file. The files are yours to edit by hand as well.`,
	}
	cmd.AddCommand(a.configShowCommand(), a.configSetCommand(), a.configUnsetCommand(), a.configOriginCommand(), a.configTrustCommand(), a.configUntrustCommand())
	return cmd
}

// EffectiveSetting is one setting, in --json too.
type EffectiveSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Layer string `json:"layer"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	// InForce is what the vault has, where the files say something else.
	InForce string `json:"in_force,omitempty"`
}

type shownFile struct {
	Name    string `json:"name"`
	Layer   string `json:"layer"`
	Digest  string `json:"digest"`
	Problem string `json:"problem,omitempty"`
	// InForce is the digest that the vault has, where it is another.
	InForce string `json:"in_force,omitempty"`
}

func (a *app) configShowCommand() *cobra.Command {
	var origin bool
	var clientID string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "What is set, and by which layer",
		Long: `Shows every setting as it binds, the layer that it comes from, and the files with their digests. The vault is
asked what it has in force: where that is not what the files say, both are shown. Without the vault the files alone
are shown.`,
		Example: "  durward config show\n  durward config show --origin --client cursor",
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, _ []string) error {
			return a.showConfig(ctx, cfg, clientID, origin)
		}),
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "with file and line of each")
	cmd.Flags().StringVar(&clientID, "client", "", "what binds this client (default: the host's settings)")
	return cmd
}

func (a *app) showConfig(ctx context.Context, cfg installdir.Config, clientID string, origin bool) error {
	userOf, err := cli.ClientUser(cfg, clientID)
	if err != nil {
		return err
	}
	state, files := security.Look(cfg.Security(), nil)
	var settings []EffectiveSetting
	if state != nil {
		for _, s := range state.Settings(clientID, userOf) {
			settings = append(settings, EffectiveSetting{Name: s.Name, Value: s.Value, Layer: s.Layer, File: s.File, Line: s.Line})
		}
	}
	shown := output.Each(files, func(f security.File) shownFile {
		return shownFile{Name: clean.Visible(f.Name), Layer: f.Layer, Digest: f.Digest, Problem: clean.Line(f.Problem, 500)}
	})
	vault := a.policyInForce(ctx, clientID)
	if vault != nil {
		settings, shown = compareInForce(settings, shown, vault)
	}
	return a.Show(map[string]any{"client": clientID, "vault_answered": vault != nil, "settings": settings, "files": shown}, func() {
		a.printConfig(cfg, settings, shown, origin, vault != nil)
	})
}

// policyInForce asks the vault; nil: it does not answer.
func (a *app) policyInForce(ctx context.Context, clientID string) *vaultv1.GetPolicyResponse {
	ctx, cancel := context.WithTimeout(ctx, cli.AskPatience)
	defer cancel()
	var response *vaultv1.GetPolicyResponse
	err := a.Run(ctx, func(ctx context.Context, s *cli.Session) (err error) {
		response, err = s.Vault.Policy.GetPolicy(ctx, &vaultv1.GetPolicyRequest{Client: clientID})
		return err
	})
	if err != nil {
		return nil
	}
	return response
}

// remarkFilesAlone says so where the vault did not answer.
func (a *app) remarkFilesAlone(answered bool) {
	if !answered {
		a.Out.Remark("%s", a.Out.Yellow("The vault does not answer: this is what the files say, not what is in force."))
	}
}

func compareInForce(settings []EffectiveSetting, files []shownFile, vault *vaultv1.GetPolicyResponse) ([]EffectiveSetting, []shownFile) {
	for _, theirs := range vault.GetSettings() {
		i := slices.IndexFunc(settings, func(s EffectiveSetting) bool { return s.Name == theirs.GetName() })
		switch value := clean.Line(theirs.GetValue(), 64); {
		case i < 0:
			settings = append(settings, EffectiveSetting{Name: clean.Line(theirs.GetName(), 64), Value: value, Layer: clean.Line(theirs.GetLayer(), 16)})
		case settings[i].Value != value:
			settings[i].InForce = value
		}
	}
	for _, theirs := range vault.GetFiles() {
		i := slices.IndexFunc(files, func(f shownFile) bool { return f.Name == theirs.GetName() })
		digest, problem := clean.Line(theirs.GetDigest(), 80), clean.Line(theirs.GetProblem(), 500)
		switch {
		case i < 0:
			files = append(files, shownFile{Name: clean.Visible(theirs.GetName()), Layer: clean.Line(theirs.GetLayer(), 16), Digest: digest, Problem: problem})
		default:
			if files[i].Digest != digest {
				files[i].InForce = cmp.Or(digest, "nothing")
			}
			files[i].Problem = cmp.Or(files[i].Problem, problem)
		}
	}
	for i, f := range files {
		if !slices.ContainsFunc(vault.GetFiles(), func(theirs *vaultv1.ConfigFile) bool { return theirs.GetName() == f.Name }) {
			files[i].InForce = "nothing"
		}
	}
	return settings, files
}

func (a *app) printConfig(cfg installdir.Config, settings []EffectiveSetting, files []shownFile, origin, answered bool) {
	header, rows := []string{"SETTING", "VALUE", "FROM"}, [][]string{}
	if origin {
		header = append(header, "STANDS AT")
	}
	for _, s := range settings {
		value := s.Value
		if s.InForce != "" {
			value = a.Out.Red(s.Value + " (in force: " + s.InForce + ")")
		}
		row := []string{s.Name, value, s.Layer}
		if origin {
			at := ""
			if s.File != "" {
				at = fmt.Sprintf("%s:%d", filepath.Join(cfg.SecurityDir, s.File), s.Line)
			}
			row = append(row, clean.Visible(at))
		}
		rows = append(rows, row)
	}
	a.Out.Table(header, rows)
	a.Out.Printf("\n%s\n", a.Out.Dim("Files in "+clean.Visible(cfg.SecurityDir)))
	for _, f := range files {
		a.Out.Printf("  %s  %s  %s\n", clean.Visible(f.Name), f.Layer, shortDigest(f.Digest))
		if f.InForce != "" {
			a.Out.Printf("    %s\n", a.Out.Red("the vault has in force: "+shortDigest(f.InForce)))
		}
		if f.Problem != "" {
			a.Out.Printf("    %s\n", a.Out.Red("not in force: "+f.Problem))
		}
	}
	if len(files) == 0 {
		a.Out.Printf("  none: what is built in binds\n")
	}
	a.remarkFilesAlone(answered)
}

// shortDigest is enough of a digest to tell two apart at a glance.
func shortDigest(d string) string {
	hexes, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(hexes) < 16 {
		return cmp.Or(d, "–")
	}
	return hexes[:4] + "·" + hexes[4:8] + "·" + hexes[8:12]
}

func (a *app) configSetCommand() *cobra.Command {
	var userName string
	var yes bool
	cmd := &cobra.Command{
		Use:               "set NAME VALUE",
		Short:             "Set a setting, with your signature",
		Long:              "Sets one setting in security.yaml, of the system or with --user of one user's clients.\n" + cli.SignedChange,
		Example:           "  durward config set approvals.wait_s 600\n  durward config set tier_ceiling WRITE --user alice",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeSettings,
		RunE: func(cmd *cobra.Command, args []string) error {
			setting, err := findSetting(args[0])
			if err != nil {
				return err
			}
			if err := setting.Check(args[1]); err != nil {
				return cli.Usage("", "%s %v", setting.Name, err)
			}
			return a.editSetting(cmd.Context(), settingChange{
				file: security.FileSettings, action: "config set " + setting.Name, done: setting.Name + " is " + args[1], user: userName, yes: yes,
				fourEyes: setting.Name == security.FourEyes && args[1] == "true",
				edited: func(before []byte) ([]byte, error) {
					return edit.Set(before, strings.Split(setting.Name, "."), args[1])
				},
			})
		},
	}
	a.RuleFlags(cmd, &userName, &yes)
	return cmd
}

func (a *app) configUnsetCommand() *cobra.Command {
	var userName string
	var yes bool
	cmd := &cobra.Command{
		Use:               "unset NAME",
		Short:             "Take a setting out of its file, with your signature",
		Long:              "Takes one setting out of security.yaml, so that the layer below binds again.\n" + cli.SignedChange,
		Example:           "  durward config unset approvals.wait_s",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSettings,
		RunE: func(cmd *cobra.Command, args []string) error {
			setting, err := findSetting(args[0])
			if err != nil {
				return err
			}
			return a.editSetting(cmd.Context(), settingChange{
				file: security.FileSettings, action: "config unset " + setting.Name, done: setting.Name + " is not set there any more", user: userName, yes: yes,
				edited: func(before []byte) ([]byte, error) {
					if edit.Line(before, strings.Split(setting.Name, ".")) == 0 {
						return before, nil
					}
					return edit.Unset(before, strings.Split(setting.Name, "."))
				},
			})
		},
	}
	a.RuleFlags(cmd, &userName, &yes)
	return cmd
}

func findSetting(name string) (security.Setting, error) {
	s, ok := security.Find(name)
	if ok {
		return s, nil
	}
	return s, cli.Usage(cli.DidYouMean(security.Suggest(name), "See: durward config show"), "there is no setting %s", clean.Visible(name))
}

// settingChange is a change of one file of a layer; fourEyes: it asks for a second human.
type settingChange struct {
	file, action, done, user string
	yes, fourEyes            bool
	edited                   func([]byte) ([]byte, error)
}

func (a *app) editSetting(ctx context.Context, c settingChange) error {
	cfg, err := a.Config()
	if err != nil {
		return err
	}
	path, name, err := cli.RuleFile(cfg, c.file, c.user)
	if err != nil {
		return err
	}
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: c.action, Yes: c.yes, Plans: func() ([]*signedchange.Plan, error) {
		return signedchange.PrepareOne(path, name, c.edited)
	}, Before: func() error {
		a.WarnOfUser(cfg, c.user)
		if c.fourEyes && c.user == "" {
			a.warnOfFourEyes(cfg)
		}
		return nil
	}})
	return a.ReportRules(out, err, c.done)
}

func (a *app) configOriginCommand() *cobra.Command {
	var origin string
	var yes, remove bool
	cmd := &cobra.Command{
		Use:   "allow-origin URL",
		Short: "Let pages of a web origin call the gateway, with your signature",
		Long: `Adds a web origin to allowed_origins of gateway.yaml, or with --remove takes it out. A page of such an origin can
use any token that its visitor gives it.
` + cli.SignedChange,
		Example: "  durward config allow-origin https://console.example",
		Args:    cobra.ExactArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) (err error) {
			origin, err = checkOrigin(args[0])
			return err
		},
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, _ []string) error {
			action, done := "config allow-origin "+origin, origin+" may call the gateway"
			if remove {
				action, done = "config allow-origin --remove "+origin, origin+" may not call the gateway any more"
			}
			out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: action, Yes: yes, Plans: func() ([]*signedchange.Plan, error) {
				return signedchange.PrepareOne(cfg.GatewayConfig, signedchange.FileGateway, func(before []byte) ([]byte, error) {
					if before == nil {
						return nil, os.ErrNotExist
					}
					if remove {
						return edit.Remove(before, "allowed_origins", func(item any, _ string) bool { return item == origin })
					}
					if edit.Has(before, "allowed_origins", origin) {
						return before, nil
					}
					return edit.Append(before, "allowed_origins", edit.Text(origin))
				})
			}})
			return a.ReportRules(out, err, done)
		}),
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.Flags().BoolVar(&remove, "remove", false, "take it out again")
	a.RuleFlags(cmd, nil, &yes)
	return cmd
}

// checkOrigin takes an origin as browsers write it: scheme, host, and a port that is not the scheme's own.
func checkOrigin(s string) (string, error) {
	u, err := url.Parse(s)
	bad := err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.Trim(u.Path, "/") != "" || strings.Contains(s, "*") || strings.ContainsAny(s, "?#")
	if bad || u.Scheme+"://"+strings.ToLower(u.Host) != strings.TrimSuffix(s, "/") {
		return "", cli.Usage("An origin is https://HOST or https://HOST:PORT, in lower case and without a path.", "%q is no web origin", clean.Visible(s))
	}
	return strings.TrimSuffix(s, "/"), nil
}

// completeSettings completes the names of settings, and then their values.
func (a *app) completeSettings(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	switch {
	case len(args) == 0:
		for _, s := range security.Settings() {
			out = append(out, cobra.CompletionWithDesc(s.Name, s.About))
		}
	case len(args) == 1 && cmd.Name() == "set":
		if s, ok := security.Find(args[0]); ok {
			if out = s.Choices(); out == nil {
				out = []string{s.Default}
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// warnOfFourEyes says for which clients nobody can approve anything once four eyes are needed: those that belong to nobody.
func (a *app) warnOfFourEyes(cfg installdir.Config) {
	list, err := client.Admitted(cfg.Clients)
	if err != nil {
		return // who reads the file for its own sake says so
	}
	var without []string
	for _, c := range list {
		if c.User == "" {
			without = append(without, clean.Line(c.ID, 64))
		}
	}
	if len(without) > 0 {
		a.Out.Remark("%s", a.Out.Yellow("Careful: "+strings.Join(without, ", ")+" have no user in clients.yaml: with four eyes nobody can approve what they ask. "+
			"Give each its user: there."))
	}
}

// emptyUsers are the folders of users/ whose rules bind nobody, each as a sentence.
func emptyUsers(cfg installdir.Config, files []security.File) map[string]string {
	out := map[string]string{}
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Name, security.FolderUsers+"/")
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(rest, "/")
		if text := cli.UserUnknown(cfg, name); text != "" {
			out[security.FolderUsers+"/"+name] = text
		}
	}
	return out
}
