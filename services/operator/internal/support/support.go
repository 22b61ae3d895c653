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
		c.pattern, err = regexp.Compile(`(^|[^0-9A-Za-z_])(` + strings.Join(all, "|") + `)($|[^0-9A-Za-z_])`)
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
	text, n := replace(text, found, func(s secret.Span) (int, int, string) { return s.From, s.To, "[credential]" })
	personal, err := c.detector.Find(ctx, text)
	if err != nil {
		return "", 0, err
	}
	text, m := replace(text, personal, func(s detect.Span) (int, int, string) { return s.From, s.To, "[" + string(s.Type) + "]" })
	n += m
	if c.pattern != nil {
		for range 2 { // two names may share the character between them
			text = c.pattern.ReplaceAllStringFunc(text, func(match string) string {
				parts := c.pattern.FindStringSubmatch(match)
				n++
				at := slices.IndexFunc(c.names, func(name Name) bool { return name.Text == parts[2] })
				return parts[1] + c.names[at].Stands + parts[3]
			})
		}
	}
	return text, n, nil
}

func replace[T any](text string, spans []T, of func(T) (from, to int, with string)) (string, int) {
	var b strings.Builder
	at, n := 0, 0
	for _, s := range spans {
		from, to, with := of(s)
		if from < at {
			continue
		}
		b.WriteString(text[at:from])
		b.WriteString(with)
		at = to
		n++
	}
	b.WriteString(text[at:])
	return b.String(), n
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
