package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/catalogfile"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/draft"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
)

// add puts an entry into the catalog: checked, shown, asked, written.
func (a *app) add(ctx context.Context, path string, opts catalog.Options, add addition) error {
	files, _, err := a.readCatalog(path, opts)
	if err != nil {
		return err
	}
	p, err := a.insert(path, files, opts, add)
	if err != nil {
		return err
	}
	name := p.file().Name
	out := a.Display()
	out.Printf("%s\n", out.Bold(name))
	old, now := strings.Split(string(p.text), "\n"), strings.Split(string(p.file().Data), "\n")
	first := 0
	for first < min(len(old), len(now)) && old[first] == now[first] {
		first++
	}
	for i := first; i < min(p.line-1+len(add.entry.Lines()), len(now)); i++ {
		out.Printf("%s %s\n", out.Dim(fmt.Sprintf("%5d", i+1)), out.Green("+ "+clean.Visible(strings.TrimSuffix(now[i], "\r"))))
	}
	for _, remark := range catalogRemarks(p.catalog) {
		out.Printf("%s %s\n", out.Yellow("!"), remark)
	}
	if err := a.Confirm(ctx, "Write it?", add.yes); err != nil {
		return err
	}
	if err := a.replace(name, p.before, p.file().Data); err != nil {
		return err
	}
	return a.written(ctx, path, p.catalog, map[string]any{"file": name, "line": p.line, "section": add.section})
}

// How long the executor has to take a written catalog up, and how often it is asked.
const (
	verdictPatience = 5 * time.Second
	// refusalPatience is longer than the executor takes to read a file again: until then its refusal may be of what stood there before.
	refusalPatience = 2 * time.Second
	verdictInterval = 100 * time.Millisecond
)

// written says that a catalog was written, and what the executor makes of it. That it refuses it, or an entry that is good here, is
// an error.
func (a *app) written(ctx context.Context, path string, c *catalog.Catalog, value map[string]any) error {
	inForce, refused, known := a.verdict(ctx, path, c)
	value["digest"], value["in_force"] = c.Digest, nil
	if known {
		value["in_force"] = inForce
	}
	if err := a.Show(value, func() {
		switch {
		case !known:
			a.Out.Printf("%s written. No executor was asked: one that uses this catalogue takes it up within a second of its start\n", a.Out.Green("✓"))
		case inForce:
			a.Out.Printf("%s written, and the executor uses it\n", a.Out.Green("✓"))
		}
	}); err != nil {
		return err
	}
	if known && !inForce {
		return cli.Failed("See: durward catalog check, durward status", "the catalogue is written, and the executor does not take it as it is: %s",
			cmp.Or(clean.Line(refused, 500), "it has not said why within "+verdictPatience.String()))
	}
	return nil
}

// verdict waits until the executor says what it makes of the catalog; known is false where none answers, or where the catalog is
// another one than this installation's.
func (a *app) verdict(ctx context.Context, path string, c *catalog.Catalog) (inForce bool, refused string, known bool) {
	own, _, err := cli.CatalogPlace{}.Resolve(a.App, false)
	if err != nil || own != path || !a.Home.Exists() {
		return false, "", false
	}
	ctx, cancel := context.WithTimeout(ctx, cli.StatusPatience+verdictPatience)
	defer cancel()
	err = a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		for began := time.Now(); ; time.Sleep(verdictInterval) {
			status, err := s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{})
			inForce, refused = status.GetCatalogueDigest() == c.Digest, status.GetCatalogueRefused()
			patience := verdictPatience
			if refused != "" {
				patience = refusalPatience
			}
			if err == nil && !inForce && time.Since(began) < patience {
				continue
			}
			for _, d := range status.GetDisabled() {
				if inForce && c.WhyDisabled(d.GetKind(), d.GetId()) == "" {
					inForce, refused = false, d.GetKind()+" "+d.GetId()+" is disabled: "+d.GetProblem()
				}
			}
			return err
		}
	})
	a.RequestID = ""
	return inForce, refused, err == nil
}

// readCatalog reads the files of a catalog, which must be good.
func (a *app) readCatalog(path string, opts catalog.Options) ([]catalog.File, *catalog.Catalog, error) {
	files, err := catalogfile.Read(path)
	if err != nil {
		return nil, nil, cli.Failed("", "the catalogue cannot be read: %s", clean.Line(err.Error(), 300))
	}
	c, err := catalog.ParseFiles(files, opts)
	if err != nil {
		return nil, nil, a.BadCatalog(path, err)
	}
	return files, c, nil
}

// badEntry says what is wrong with the new entry, by its own lines.
func (a *app) badEntry(file string, line, length int, err error) error {
	var lines []string
	for _, p := range catalog.AsProblems(err) {
		where := p.Error()
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

// insertion is a catalog with an entry that was put into one of its files, at a line.
type insertion struct {
	files    []catalog.File
	at, line int
	// before is what the file held, nil for a new one, and text what the entry was put into.
	before, text []byte
	catalog      *catalog.Catalog
}

func (i insertion) file() *catalog.File { return &i.files[i.at] }

// insert puts an entry into its file. The catalog is good with it.
func (a *app) insert(path string, files []catalog.File, opts catalog.Options, add addition) (i insertion, err error) {
	i.at, i.files, err = catalogfile.Target(path, files, add.to, add.section)
	if wrong := catalogfile.NameError(""); errors.As(err, &wrong) {
		err = cli.Usage("", "%v", err)
	}
	if err != nil {
		return i, err
	}
	file := i.file()
	i.before, i.text = file.Data, file.Data
	if i.text == nil {
		i.text = []byte("version: 1\n")
	}
	if file.Data, i.line, err = draft.Append(i.text, add.section, add.entry); err != nil {
		for _, line := range add.entry.Lines() {
			a.Display().Printf("    %s\n", clean.Visible(line))
		}
		return i, cli.Failed("", "%s: %s", file.Name, err.Error())
	}
	if i.catalog, err = catalog.ParseFiles(i.files, opts); err != nil {
		return i, a.badEntry(file.Name, i.line, len(add.entry.Lines()), err)
	}
	return i, nil
}

// replace writes a file of the catalog's, and says what to do where that went wrong.
func (a *app) replace(path string, before, after []byte) error {
	if a.Home.Exists() {
		// Of two commands at once both would find what they read, and the change of the first would be lost. A home that cannot be locked is
		// another user's, where none of our commands is at work.
		release, err := a.Home.Lock("catalogue")
		if errors.Is(err, installdir.ErrLocked) {
			return cli.Failed("Run the command again.", "another durward command is changing the catalogue; nothing was written")
		}
		if err == nil {
			defer func() { _ = release() }() // ends with this process at the latest
		}
	}
	err := catalogfile.Replace(path, before, after)
	switch {
	case errors.Is(err, catalogfile.ErrChanged):
		return cli.Failed("Run the command again.", "%s was changed meanwhile; nothing was written", path)
	case errors.Is(err, catalogfile.ErrOwner):
		return cli.Failed("Run the command as its owner, or with sudo.", "%s is another user's or group's, and would have become yours; nothing was written", path)
	}
	return err
}
