package admin

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

// Folders in which shells and man(1) look for what was installed beside the host's packages.
const (
	share           = "/usr/local/share/"
	bashCompletions = share + "bash-completion/completions"
	zshCompletions  = share + "zsh/site-functions"
	fishCompletions = share + "fish/vendor_completions.d"
	manualPages     = share + "man/man1"
)

// documentsCommand is for scripts/packages.sh, which compresses and packs what it writes.
func (a *app) documentsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "documents DIR", Short: "Write completion files and manual pages", Hidden: true, Args: cobra.ExactArgs(1), ValidArgsFunction: cli.CompleteFolders,
		Annotations: map[string]string{cli.NoHome: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			papers, err := documents(cmd.Root(), a.Streams.Version)
			if err != nil {
				return err
			}
			for path, text := range papers {
				to := filepath.Join(args[0], strings.TrimPrefix(path, share))
				if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // everybody may read documents
					return err
				}
				if err := os.WriteFile(to, text, 0o644); err != nil { //nolint:gosec // the same
					return err
				}
			}
			return nil
		},
	}
}

// documents are the completion files and manual pages of a command and of all below it, by where they are installed.
func documents(root *cobra.Command, version string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for path, write := range map[string]func(io.Writer) error{
		filepath.Join(bashCompletions, root.Name()):         func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		filepath.Join(zshCompletions, "_"+root.Name()):      root.GenZshCompletion,
		filepath.Join(fishCompletions, root.Name()+".fish"): func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return nil, fmt.Errorf("completion file %s: %w", path, err)
		}
		out[path] = b.Bytes()
	}
	pages(root, version, out)
	return out, nil
}

func pages(c *cobra.Command, version string, out map[string][]byte) {
	name := pageName(c)
	out[filepath.Join(manualPages, name+".1")] = page(c, name, version)
	for _, sub := range c.Commands() {
		if (sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand()) && sub.Name() != "help" {
			pages(sub, version, out)
		}
	}
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// page is the manual page of one command. Its text is the help's, line by line: it is laid out already, and reads the same.
func page(c *cobra.Command, name, version string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH \"%s\" 1 \"\" \"Durward %s\" \"Durward\"\n", roff(strings.ToUpper(name)), roff(version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(strings.TrimSpace(cmp.Or(c.Long, c.Short))))
	if c.Runnable() || c.HasSubCommands() {
		fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n", roff(strings.TrimSpace(strings.TrimPrefix(c.UsageString(), "Usage:\n"))))
	}
	var see []string
	if c.HasParent() {
		see = append(see, roff(pageName(c.Parent()))+"(1)")
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			see = append(see, roff(pageName(sub))+"(1)")
		}
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(see, ",\n"))
	return b.Bytes()
}

// roff writes text so that man(1) shows it as it is.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
