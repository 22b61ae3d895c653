package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/catalogue"
	"durward.internal/services/platform/clean"
)

func anyList(v any) []any {
	items, _ := v.([]any)
	return items
}

// add puts an entry into the catalogue: checked, shown, asked, written.
func (a *app) add(ctx context.Context, path string, opts catalogue.Options, add addition) error {
	files, err := catalogueFiles(path)
	if err != nil {
		return cli.Failed("", "the catalogue cannot be read: %s", clean.Line(err.Error(), 300))
	}
	if _, err := catalogue.ParseFiles(files, opts); err != nil {
		return a.BadCatalogue(path, err)
	}
	at, files, err := target(path, files, add)
	if err != nil {
		return err
	}
	before := files[at].Data
	text := before
	if text == nil {
		text = []byte("version: 1\n")
	}
	after, line, err := draft.Append(text, add.section, add.entry)
	if err != nil {
		for _, line := range add.entry.Lines() {
			a.Display().Printf("    %s\n", clean.Visible(line))
		}
		return cli.Failed("", "%s: %s", files[at].Name, err.Error())
	}
	files[at].Data = after
	changed, err := catalogue.ParseFiles(files, opts)
	if err != nil {
		return a.badEntry(files[at].Name, line, len(add.entry.Lines()), err)
	}
	out := a.Display()
	out.Printf("%s\n", out.Bold(files[at].Name))
	old, now := strings.Split(string(text), "\n"), strings.Split(string(after), "\n")
	first := 0
	for first < min(len(old), len(now)) && old[first] == now[first] {
		first++
	}
	for i := first; i < min(line-1+len(add.entry.Lines()), len(now)); i++ {
		out.Printf("%s %s\n", out.Dim(fmt.Sprintf("%5d", i+1)), out.Green("+ "+clean.Visible(strings.TrimSuffix(now[i], "\r"))))
	}
	for _, remark := range catalogueRemarks(changed) {
		out.Printf("%s %s\n", out.Yellow("!"), remark)
	}
	if err := a.Confirm(ctx, "Write it?", add.yes); err != nil {
		return err
	}
	if err := replace(files[at].Name, before, after); err != nil {
		return err
	}
	return a.Show(map[string]any{"file": files[at].Name, "line": line, "section": add.section, "digest": changed.Digest}, func() {
		a.Out.Printf("%s written. The executor takes it up within a second; see: durward catalog check\n", a.Out.Green("✓"))
	})
}

// badEntry says what is wrong with the new entry, by its own lines.
func (a *app) badEntry(file string, line, length int, err error) error {
	var lines []string
	for _, p := range catalogue.AsProblems(err) {
		where := p.String()
		if p.File == file && p.Line >= line && p.Line < line+length {
			where = fmt.Sprintf("line %d of the entry: %s", p.Line-line+1, p.What)
		}
		lines = append(lines, clean.Line(where, 500))
	}
	if len(lines) == 0 {
		lines = []string{clean.Block(err.Error(), 1000)}
	}
	return cli.Usage("Nothing was written. Every key of an entry: deploy/config/catalogue.yaml", "%s", strings.Join(lines, "\n  "))
}

// catalogueFiles reads a catalogue's files as the executor lists them.
func catalogueFiles(path string) ([]catalogue.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	names := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, e := range entries {
			if filepath.Ext(e.Name()) == ".yaml" && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, filepath.Join(path, e.Name()))
			}
		}
	}
	files := make([]catalogue.File, len(names))
	for i, name := range names {
		data, err := readBounded(name)
		if err != nil {
			return nil, err
		}
		files[i] = catalogue.File{Name: name, Data: data}
	}
	return files, nil
}

// target chooses the file that gets the entry, and adds it to the files, without data, where it is a new one.
func target(path string, files []catalogue.File, add addition) (int, []catalogue.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, nil, err
	}
	if !info.IsDir() {
		if add.to != "" {
			return 0, nil, cli.Usage("", "--to is for a catalogue that is a folder; this one is the file %s", path)
		}
		return 0, files, nil
	}
	if add.to != "" {
		if add.to != filepath.Base(add.to) || filepath.Ext(add.to) != ".yaml" || strings.HasPrefix(add.to, ".") {
			return 0, nil, cli.Usage("", "--to is the name of a .yaml file in the folder")
		}
		name := filepath.Join(path, add.to)
		if i := slices.IndexFunc(files, func(f catalogue.File) bool { return f.Name == name }); i >= 0 {
			return i, files, nil
		}
		files = append(files, catalogue.File{Name: name})
		slices.SortFunc(files, func(a, b catalogue.File) int { return strings.Compare(a.Name, b.Name) })
		return slices.IndexFunc(files, func(f catalogue.File) bool { return f.Name == name }), files, nil
	}
	at := 0
	for i, f := range files {
		var sections map[string]any
		if yaml.Unmarshal(f.Data, &sections) == nil && len(anyList(sections[add.section])) > 0 {
			at = i
		}
	}
	return at, files, nil
}

// replace writes a catalogue's file, if it still is what was read; nil means that it must not be there.
func replace(path string, before, after []byte) error {
	now, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && before == nil:
		return home.CreateFile(path, after, 0o644)
	case err != nil:
		return fmt.Errorf("write: %w", err)
	case before == nil || !bytes.Equal(now, before):
		return cli.Failed("Run the command again.", "%s was changed meanwhile; nothing was written", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	// A symbolic link stays one.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := home.WriteFile(path, after, info.Mode().Perm()); err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() && int(owner.Gid) == os.Getegid() {
		return nil
	}
	// It stays its owner's, whose group may be the executor's.
	if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		return cli.Failed("See that the executor may read it.", "%s was written, and its owner is now you", path)
	}
	return nil
}
