// Package support makes the file that somebody else needs to help: texts about an installation, out of which credentials, personal data and
// the names of this host's people are taken. It reaches nobody and decides about nothing.
//
// What it is given is untrusted text: logs hold what services and agents said.
package support

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/detect"
	"durward.internal/services/platform/secret"
)

// maxText bounds one text: of a longer one the end is kept.
const maxText = 2 << 20

// Name is a name of this host's people or of itself, and what stands in its place.
type Name struct{ Text, Stands string }

// Cleaner takes out what is not for strangers.
type Cleaner struct {
	detector *detect.Detector
	names    []Name
	pattern  *regexp.Regexp
}

// NewCleaner returns one that also replaces these names, as words of their own.
func NewCleaner(names []Name) (*Cleaner, error) {
	d, err := detect.New(detect.Config{})
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(n Name) bool { return len(n.Text) < 2 })
	// A longer name may hold a shorter one.
	slices.SortStableFunc(names, func(a, b Name) int { return len(b.Text) - len(a.Text) })
	c := &Cleaner{detector: d, names: names}
	var all []string
	for _, n := range names {
		all = append(all, regexp.QuoteMeta(n.Text))
	}
	if len(all) > 0 {
		// A name is meant however it is written, and begins behind what stands for a control character in JSON, too.
		c.pattern, err = regexp.Compile(`(?i)(^|\\[bfnrt]|[^0-9A-Za-z_])(` + strings.Join(all, "|") + `)($|[^0-9A-Za-z_])`)
	}
	return c, err
}

// Clean returns the text without credentials, personal data and names, and how many of them there were. A text of which that cannot be told is
// left out.
func (c *Cleaner) Clean(ctx context.Context, text string) (string, int, error) {
	if len(text) > maxText {
		text = text[len(text)-maxText:]
		_, text, _ = strings.Cut(text, "\n")
	}
	text = clean.Block(strings.ToValidUTF8(text, "?"), maxText)
	found, err := secret.Find(ctx, text)
	if err != nil {
		return "", 0, err
	}
	personal, err := c.detector.Find(ctx, text)
	if err != nil {
		return "", 0, err
	}
	for i := range found {
		found[i].Kind = "credential"
	}
	for _, p := range personal {
		found = append(found, secret.Span{From: p.From, To: p.To, Kind: string(p.Type)})
	}
	text, n := replace(text, secret.Merge(found)) // both find some credentials, which are one value taken out
	if c.pattern != nil {
		for range 2 { // two names may share the character between them
			text = c.pattern.ReplaceAllStringFunc(text, func(match string) string {
				parts := c.pattern.FindStringSubmatch(match)
				n++
				at := slices.IndexFunc(c.names, func(name Name) bool { return strings.EqualFold(name.Text, parts[2]) })
				return parts[1] + c.names[at].Stands + parts[3]
			})
		}
	}
	return text, n, nil
}

func replace(text string, spans []secret.Span) (string, int) {
	var b strings.Builder
	at := 0
	for _, s := range spans {
		b.WriteString(text[at:s.From] + "[" + s.Kind + "]")
		at = s.To
	}
	b.WriteString(text[at:])
	return b.String(), len(spans)
}

// Text is one file of a bundle.
type Text struct {
	Name string `json:"name"`
	// Bytes is its size, and Removed how many values were taken out of it.
	Bytes   int `json:"bytes"`
	Removed int `json:"removed"`
	content string
}

// Bundle is the texts of one.
type Bundle struct {
	cleaner *Cleaner
	Texts   []Text
}

// NewBundle returns an empty one.
func NewBundle(c *Cleaner) *Bundle { return &Bundle{cleaner: c} }

// Add cleans a text and adds it. Why there is none is a text too.
func (b *Bundle) Add(ctx context.Context, name, text string, missing error) error {
	if missing != nil {
		text = "it could not be had: " + missing.Error() + "\n"
	}
	cleaned, n, err := b.cleaner.Clean(ctx, text)
	if err != nil {
		return err
	}
	b.Texts = append(b.Texts, Text{Name: name, Bytes: len(cleaned), Removed: n, content: cleaned})
	return nil
}

// Write writes the bundle, a compressed tar archive.
func (b *Bundle) Write(out io.Writer, now time.Time) error {
	zipped := gzip.NewWriter(out)
	archive := tar.NewWriter(zipped)
	for _, t := range b.Texts {
		if err := archive.WriteHeader(&tar.Header{Name: "durward-support/" + t.Name, Mode: 0o600, Size: int64(len(t.content)), ModTime: now.Truncate(time.Second)}); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, t.content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}
