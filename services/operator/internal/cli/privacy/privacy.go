// Package privacy is the commands for personal data: what the vault does with it, and the detectors tried on a text of the operator's own.
package privacy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/detect"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	cmd := &cobra.Command{
		Use:     "privacy",
		Short:   "Personal data: what becomes of it, and what the detectors find",
		Example: "  durward privacy sessions\n  durward privacy policy\n  durward privacy test mail.txt\n  durward privacy detect mail.txt",
	}
	cmd.AddCommand(a.sessionsCommand(), a.policyCommand(), a.testCommand(), a.detectCommand())
	return cli.Grouped(cli.GroupAccess, cmd)
}

// maxText is how much of a text is looked at, in bytes.
const maxText = 64 << 20

func (a *app) detectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "detect FILE|-",
		Short: "What the detectors find in a text: where, of which type, how sure, and why",
		Long: `Reads a text and prints what the detectors of personal data and credentials find in it. The text is looked at
in this program alone: nothing is sent and nothing is kept. Values are shown, since the text is yours.

SURE is from 1 to 100: where two types fit one place, the surer one counts. It is no probability.

Exit code 0 whether or not something is found.`,
		Example: "  durward privacy detect mail.txt\n  durward logs demo-chat --tail 40 | durward privacy detect -\n  durward privacy detect mail.txt --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.read(args[0])
			if err != nil {
				return err
			}
			return a.detect(cmd.Context(), text)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
}

// read returns the text of a file, or of the standard input.
func (a *app) read(name string) (string, error) {
	in := a.Streams.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			hint := ""
			if errors.Is(err, fs.ErrNotExist) {
				hint = "Name a file that is there, or - for the standard input."
			}
			return "", cli.Failed(hint, "%s", clean.Line(err.Error(), 300))
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxText+1))
	switch {
	case err != nil:
		return "", cli.Failed("", "%s: %s", clean.Visible(name), clean.Line(err.Error(), 300))
	case len(raw) > maxText:
		return "", cli.Failed("Try a part of it.", "%s has more than %d MiB, which is the most that is looked at", clean.Visible(name), maxText>>20)
	case !utf8.Valid(raw):
		return "", cli.Failed("Convert it to UTF-8.", "%s is no text in UTF-8", clean.Visible(name))
	}
	return string(raw), nil
}

// FoundJSON is what --json says of one value. Places are in bytes of the text, lines and columns are from 1, columns in characters.
type FoundJSON struct {
	From       int    `json:"from"`
	To         int    `json:"to"`
	Line       int    `json:"line"`
	Column     int    `json:"column"`
	Type       string `json:"type"`
	Confidence int    `json:"confidence"`
	Why        string `json:"why"`
	Value      string `json:"value"`
}

// ResultJSON is what --json says.
type ResultJSON struct {
	Bytes  int            `json:"bytes"`
	Found  []FoundJSON    `json:"found"`
	Counts map[string]int `json:"counts"`
}

func (a *app) detect(ctx context.Context, text string) error {
	d, err := detect.New(detect.Config{})
	if err != nil {
		return err
	}
	spans, err := d.Find(ctx, text)
	if err != nil {
		return err
	}
	result := ResultJSON{Bytes: len(text), Found: []FoundJSON{}, Counts: map[string]int{}}
	line, begin := 1, 0
	for at, i := 0, 0; i < len(spans); i++ {
		s := spans[i]
		line += strings.Count(text[at:s.From], "\n")
		if n := strings.LastIndexByte(text[at:s.From], '\n'); n >= 0 {
			begin = at + n + 1
		}
		at = s.From
		result.Counts[string(s.Type)]++
		result.Found = append(result.Found, FoundJSON{
			From: s.From, To: s.To, Line: line, Column: utf8.RuneCountInString(text[begin:s.From]) + 1, Type: string(s.Type), Confidence: s.Confidence, Why: s.Why, Value: text[s.From:s.To],
		})
	}
	return a.Show(result, func() { a.table(result) })
}

func (a *app) table(result ResultJSON) {
	if len(result.Found) == 0 {
		a.Out.Printf("nothing is found in %s\n", clean.Count(result.Bytes, "byte"))
		return
	}
	a.Out.Table([]string{"LINE:COLUMN", "TYPE", "SURE", "VALUE", "WHY"}, output.Each(result.Found, func(f FoundJSON) []string {
		return []string{fmt.Sprintf("%d:%d", f.Line, f.Column), f.Type, strconv.Itoa(f.Confidence), clean.Line(strings.ReplaceAll(f.Value, "\n", " "), 60), f.Why}
	}))
	a.Out.Printf("%s in %s\n", clean.Count(len(result.Found), "value"), clean.Count(result.Bytes, "byte"))
}
