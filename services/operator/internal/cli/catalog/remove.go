package catalog

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// kinds are the entries that can be removed, with their lists in the file.
var kinds = []string{"service", "mode", "model"}

func (a *app) catalogRemoveCommand(place *cli.CatalogPlace) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "remove service|mode|model ID",
		Aliases: []string{"rm"},
		Short:   "Remove a service, mode or model; you are shown the lines and asked",
		Long: `Takes an entry out of the catalogue. Nothing else in the file changes: a comment above the entry stays. What others still
name is not removed: the command says where. A wrong entry can be removed too, also while others are wrong. A service that
runs keeps the catalogue with it in force until it is stopped.`,
		Example: "  durward catalog remove service demo-idle\n  durward catalog remove mode coding --yes",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(kinds, args[0]) {
				return cli.Usage("One of: "+strings.Join(kinds, ", "), "no entry is a %s", clean.Visible(args[0]))
			}
			path, opts, err := place.Of(a.App, cmd)
			if err != nil {
				return err
			}
			opts.Lenient = true
			return a.remove(cmd.Context(), path, opts, args[0], args[1], yes)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0:
				return kinds, cobra.ShellCompDirectiveNoFileComp
			case len(args) == 1 && args[0] == "service":
				return a.CompleteEntries("service")(cmd, nil, word)
			case len(args) == 1 && args[0] == "mode":
				return a.CompleteEntries("mode")(cmd, nil, word)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before writing")
	return cmd
}

// remove takes every entry of that kind and id out of one file: checked, shown, asked, written.
func (a *app) remove(ctx context.Context, path string, opts catalog.Options, kind, id string, yes bool) error {
	files, was, err := a.readCatalog(path, opts)
	if err != nil {
		return err
	}
	for i, f := range files {
		after, err := edit.Remove(f.Data, kind+"s", func(item any, _ string) bool {
			entry, _ := item.(map[string]any)
			return entry["id"] == any(id)
		})
		if errors.Is(err, edit.ErrUnknown) {
			continue
		}
		if err != nil {
			return cli.Failed("Remove it by hand, then: durward catalog check", "%s: %s", f.Name, err.Error())
		}
		files[i].Data = after
		now, err := catalog.ParseFiles(files, opts)
		if err != nil {
			return a.BadCatalog(path, err)
		}
		var named []string
		for _, d := range now.Disabled {
			if was.WhyDisabled(d.Kind, d.ID) == "" {
				if d.Problem.File == f.Name {
					d.Problem.Line = stood(d.Problem.Line, f.Data, after)
				}
				named = append(named, clean.Line(d.Problem.Error(), 300))
			}
		}
		if len(named) > 0 {
			return cli.Failed("Take it out there first. Nothing was written.", "%s %s is still named:\n  %s", kind, clean.Visible(id), strings.Join(named, "\n  "))
		}
		a.ShowPlan(&signedchange.Plan{Name: filepath.Base(f.Name), Path: f.Name, Before: f.Data, After: after})
		if err := a.Confirm(ctx, "Write it?", yes); err != nil {
			return err
		}
		if err := a.replace(f.Name, f.Data, after); err != nil {
			return err
		}
		return a.written(ctx, path, now, map[string]any{"file": f.Name, "removed": map[string]string{kind: id}})
	}
	return cli.Usage("See: durward catalog show", "the catalogue has no %s %s", kind, clean.Visible(id))
}

// stood is where a line of a file stood before lines were taken out of it: the file on the disk still has them.
func stood(line int, before, after []byte) int {
	lines := bytes.SplitAfter(after, []byte("\n"))
	if bytes.HasSuffix(before, bytes.Join(lines[line-1:], nil)) { // it is behind what was taken out
		return line + bytes.Count(before, []byte("\n")) - bytes.Count(after, []byte("\n"))
	}
	return line
}
