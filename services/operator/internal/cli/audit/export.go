package audit

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/platform/clean"
)

// Formats of an export.
const (
	formatJSONL = "jsonl"
	formatJSON  = "json"
	formatCSV   = "csv"
	formatTiles = "tiles"
)

var exports = []string{formatJSONL, formatJSON, formatCSV, formatTiles}

func (a *app) auditExportCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "export FILE|FOLDER",
		Short: "Write the whole log where it can be proved offline, by others too",
		Long: `Writes the signed checkpoint and every entry to a file, as JSON lines, proving them on the way. Keep the file
somewhere else: "durward audit verify --offline FILE" proves it, and a later log must extend it.

With --format json it writes one JSON object, with --format csv a table for a spreadsheet: a row a record, whose
last column says what was denied, failed or destructive. No cell of it is taken for a formula. Neither is read by
"verify", and the log is proved while they are written.

With --format tiles it writes the tree and the leaves to a folder, in the layout of C2SP's tlog-tiles, that any
web server or bucket can serve and that other people's programs verify. The folder holds what happened when,
and the commitments to what was said, never the bodies. Once more into the same folder adds what is new. Where
witnesses cosign the log, the folder ends at the newest checkpoint that a quorum cosigned.`,
		Example: "  durward audit export log.jsonl\n  durward audit export --format csv log.csv\n  durward audit export --format tiles /var/www/log",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" { // standard output has what was proved
				return cli.Usage("Name a file that is not there yet.", "an export goes to a file of its own, and - is none")
			}
			write := func(ctx context.Context, s *cli.Session, l *history.Log, path string) error {
				return a.export(ctx, s, l, path, format)
			}
			switch format {
			case formatJSONL, formatJSON, formatCSV:
			case formatTiles:
				write = a.exportTiles
			default:
				return cli.Usage("Use "+strings.Join(exports, ", ")+".", "%q is not a format", clean.Visible(format))
			}
			return a.withLog(cmd.Context(), func(ctx context.Context, s *cli.Session, l *history.Log) error {
				ctx, cancel := context.WithTimeout(ctx, exportPatience)
				defer cancel()
				return write(ctx, s, l, args[0])
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", formatJSONL, strings.Join(exports, ", "))
	cli.CompleteFlag(cmd, "format", cli.OneOf(exports...))
	return cmd
}

func (a *app) export(ctx context.Context, s *cli.Session, l *history.Log, path, format string) (err error) {
	stream, err := history.Fetch(ctx, s.Audit, 0, l.Held().Size)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return cli.Usage("Name a file that is not there yet.", "%s is there already", clean.Visible(path))
	}
	if err != nil {
		return cli.Usage("Name another.", "the file cannot be made: %v", err)
	}
	report, err := l.Export(stream, f, format)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		if altered, is := errors.AsType[*cli.Problem](proofProblem(err)); is {
			return altered // the file is the evidence
		}
		return errors.Join(err, os.Remove(path)) // a part of a log would bar the way of the next try
	}
	return a.showReport(report, checkpointPath(s.Config))
}

func (a *app) exportTiles(ctx context.Context, s *cli.Session, l *history.Log, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	tiles, err := history.OpenTiles(dir, s.Trust.Current().LogKeys)
	if errors.Is(err, history.ErrTilesBusy) {
		return cli.Failed("Try again when it has ended.", "another export writes to %s", clean.Visible(dir))
	}
	if err != nil {
		return proofProblem(err)
	}
	defer func() { _ = tiles.Close() }() // what was written is on the disk
	had := tiles.Had()
	stream, err := history.Fetch(ctx, s.Audit, tiles.From(), l.Held().Size)
	if err != nil {
		return err
	}
	head, err := l.ExportTiles(ctx, stream, tiles)
	if err != nil {
		return proofProblem(err)
	}
	root := hex.EncodeToString(head.Root[:])
	shown := map[string]any{"folder": dir, "records": head.Size, "new": head.Size - had, "root": root}
	newest := l.Witnessed()
	cosigned := newest.Checkpoint == head
	if cosigned {
		shown["witnessed_by"] = newest.By
	}
	return a.Show(shown, func() {
		a.Out.Printf("%s %s, root %s, in tiles under %s: %s new\n", a.Out.Green("✓"), clean.Count(head.Size, "record"), root, clean.Visible(dir), clean.Count(head.Size-had, "is", "are"))
		switch {
		case cosigned:
			a.Out.Printf("%s\n", a.Out.Wrapped(fmt.Sprintf("  cosigned by %s; %d newer records wait for witnesses", clean.Line(strings.Join(newest.By, ", "), 200), l.Held().Size-head.Size)))
		case s.Trust.Current().Witnesses.Quorum > 0:
			a.Out.Printf("%s\n", a.Out.Yellow("  cosigned by no quorum of witnesses"))
		}
	})
}
