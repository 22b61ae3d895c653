package life

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/support"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/health"
)

// Bounds of what one source may say, and of how long it may take; and how many lines of a log are collected.
const (
	logLines       = 5000
	sourceBytes    = 16 << 20
	sourcePatience = 20 * time.Second
)

func (a *app) supportCommand() *cobra.Command {
	var yes bool
	bundle := &cobra.Command{
		Use:   "bundle FILE",
		Short: "Collect what somebody needs to help you, cleaned, after you saw the list",
		Long: `Writes a compressed archive of texts: versions, what status and doctor say, the processes' configuration, health and metrics, and the
last 5,000 lines of each log. No key, token, rule, catalogue, list of clients or record of the audit log is in it. Out of
every text are taken: what looks like a credential, personal data (the detectors of "durward privacy detect"), addresses of
machines, and the names of operator, user and host. The detectors miss some: look before you send it.

The list of files is shown before anything is written, with how many values were taken out of each.`,
		Example:           "  durward support bundle support.tar.gz",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFiles(),
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			return a.support(ctx, cfg, args[0], yes)
		}),
	}
	bundle.Flags().BoolVar(&yes, "yes", false, "do not ask before it is written")
	cmd := &cobra.Command{Use: "support", Short: "What helps others to help you", Example: "  durward support bundle support.tar.gz"}
	cmd.AddCommand(bundle)
	return cmd
}

func (a *app) support(ctx context.Context, cfg installdir.Config, path string, yes bool) error {
	if _, err := os.Lstat(path); err == nil {
		return cli.Usage("Name a file that is not there yet.", "%s is there already", path)
	}
	cleaner, err := support.NewCleaner(a.names(cfg))
	if err != nil {
		return err
	}
	b := support.NewBundle(cleaner)
	looking, done := a.Looking()
	defer done() // what was looked at when it failed
	for name, text := range a.sources(ctx, cfg) {
		looking(name)
		said, missing := text()
		if err := b.Add(ctx, name, said, missing); err != nil {
			return err
		}
	}
	done()
	if !a.Machine() {
		for _, t := range b.Texts {
			a.Display().Printf("  %-28s %8d bytes, %s taken out\n", t.Name, t.Bytes, clean.Count(t.Removed, "value"))
		}
	}
	if err := a.Confirm(ctx, "Write them to "+clean.Visible(path)+"?", yes); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := b.Write(&out, a.Now()); err != nil {
		return err
	}
	if err := installdir.CreateFile(path, out.Bytes(), 0o600); err != nil {
		return cli.Failed("", "it was not written: %s", reason(err))
	}
	return a.Show(map[string]any{"file": path, "texts": b.Texts}, func() {
		a.Out.Printf("%s %s: look into it before you send it to anybody\n", a.Out.Green("✓"), path)
	})
}

// names are those of this host's people, and its own.
func (a *app) names(cfg installdir.Config) []support.Name {
	out := []support.Name{{Text: cfg.Operator, Stands: "OPERATOR"}, {Text: a.Streams.Getenv("SUDO_USER"), Stands: "USER"}}
	if u, err := user.Current(); err == nil && u.Username != "root" {
		out = append(out, support.Name{Text: u.Username, Stands: "USER"}, support.Name{Text: u.Name, Stands: "USER"})
	}
	if host, err := os.Hostname(); err == nil && host != "localhost" {
		out = append(out, support.Name{Text: host, Stands: "HOST"})
	}
	return out
}

// sources yields what is collected, by name.
func (a *app) sources(ctx context.Context, cfg installdir.Config) func(func(string, func() (string, error)) bool) {
	client := &http.Client{Timeout: cli.StatusPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	return func(yield func(string, func() (string, error)) bool) {
		own := func(args ...string) func() (string, error) {
			return func() (string, error) {
				self, err := os.Executable()
				if err != nil {
					return "", err
				}
				return said(ctx, self, append([]string{"--home", a.Home.Dir}, args...)...)
			}
		}
		more := yield("durward-version", own("version")) && yield("status.json", own("status", "--json")) && yield("doctor.json", own("doctor", "--json")) &&
			yield("host", func() (string, error) { return said(ctx, "uname", "-srm") })
		for _, role := range cfg.Roles() {
			if !more {
				return
			}
			page := func(name string) func() (string, error) {
				return func() (string, error) { return get(ctx, client, cfg.Health.Of(role), name) }
			}
			file := filepath.Join(filepath.Dir(cfg.Clients), role+".yaml")
			more = yield("config/"+role+".yaml", func() (string, error) { return text(file) }) &&
				yield("health/"+role, page("/health")) && yield("metrics/"+role, page("/metrics")) &&
				yield("logs/"+role+".log", func() (string, error) {
					if said, err := text(a.Home.Log(role)); err == nil {
						before, _ := text(a.Home.Log(role) + ".1") // what was put aside; there may be none
						return lastLines(before+said, logLines), nil
					}
					return said(ctx, "journalctl", "--unit", "durward-"+role, "--lines", strconv.Itoa(logLines), "--no-pager", "--output", "cat")
				})
		}
	}
}

// said is what a program printed, whatever its exit code.
func said(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sourcePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...) // #nosec G204 -- our own program, and the host's by name
	out, err := cmd.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); ok && len(out) > 0 {
		err = nil
	}
	return string(out), err
}

// text is the end of a file.
func text(path string) (string, error) {
	f, err := os.Open(path) // #nosec G304 -- of the installation
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > sourceBytes {
		if _, err := f.Seek(-sourceBytes, io.SeekEnd); err != nil {
			return "", err
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, sourceBytes))
	return string(raw), err
}

// lastLines is the end of a text.
func lastLines(text string, n int) string {
	at := len(strings.TrimSuffix(text, "\n"))
	for ; n > 0 && at >= 0; n-- {
		at = strings.LastIndexByte(text[:at], '\n')
	}
	return text[at+1:]
}

func get(ctx context.Context, client *http.Client, address, page string) (string, error) {
	response, err := health.Get(ctx, client, address, page)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, sourceBytes))
	return string(raw), err
}
