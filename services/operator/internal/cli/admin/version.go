package admin

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/platform/clean"
)

// Version returns the command that says which version this is, and whether what is installed is what was packed.
func Version(core *cli.App) *cobra.Command {
	a := &app{core}
	var verify bool
	var signers string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Prints the version. With --verify also whether the files of the package durward are those that were packed, by
the list of digests in it, and whose key signed that list. Signers are in ` + install.ReleaseSigners + `, in
the form of allowed_signers (ssh-keygen(1)), or in --signers FILE.

Exit code 1 when a file differs, when the signature does not stand, or when --signers knows no such signer.`,
		Example: "  durward version\n  durward version --verify --signers release_signers",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !verify {
				return a.Show(map[string]string{"version": a.Streams.Version}, func() { a.Out.Printf("durward %s\n", a.Streams.Version) })
			}
			return a.verifyPackage(signers)
		},
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "hold the package's files to its list of digests, and the list to its signature")
	cmd.Flags().StringVar(&signers, "signers", "", "`file` with the keys of those who make releases (default "+install.ReleaseSigners+")")
	return cmd
}

func (a *app) verifyPackage(signers string) error {
	known, err := os.ReadFile(install.ReleaseSigners)
	if signers != "" {
		known, err = os.ReadFile(signers)
	}
	if err != nil && (signers != "" || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission)) {
		return cli.Failed("", "%s", clean.Line(err.Error(), 300))
	}
	s, err := install.Verify("/", known, a.Now())
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Failed("Build it yourself and compare, or install the package: make packages", "this host has no list of what was packed: Durward is not installed from a package")
	}
	if err != nil {
		return cli.Failed(install.Reinstall, "%s", clean.Line(err.Error(), 300))
	}
	if err := a.Show(map[string]any{"version": a.Streams.Version, "package": s}, func() {
		a.Out.Printf("durward %s\n", a.Streams.Version)
		if len(s.Differ) == 0 {
			a.Out.Printf("%s %s as packed\n", a.Out.Green("✓"), clean.Count(s.Files, "file is", "files are"))
		}
		switch {
		case s.Signer != "":
			a.Out.Printf("%s their list is signed by %s\n", a.Out.Green("✓"), clean.Visible(s.Signer))
		case s.Key != "":
			a.Out.Printf("%s their list is signed by the key %s, which is nobody's of %s\n", a.Out.Yellow("!"), s.Key, clean.Line(cmp.Or(signers, install.ReleaseSigners), 200))
		default:
			a.Out.Printf("%s their list is not signed: whoever can change the files can change it too\n", a.Out.Yellow("!"))
		}
	}); err != nil {
		return err
	}
	switch {
	case len(s.Differ) > 0:
		return cli.Failed(install.Reinstall, "%s from the package: %s", clean.Count(len(s.Differ), "file differs", "files differ"), clean.Line(strings.Join(s.Differ[:min(len(s.Differ), 5)], ", "), 500))
	case signers != "" && s.Signer == "":
		return cli.Failed("", "no signer of %s signed the list", clean.Line(signers, 200))
	}
	return nil
}
