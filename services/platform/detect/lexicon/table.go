package lexicon

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strings"
)

// Table is what words are known to be. It holds 32 bits of each word's hash instead of the word: of 300,000 words it takes 3 MB, and one word in
// four million that it does not hold is taken for one that it holds. The words are linked in, so no text can make it slow.
type Table struct {
	Lists

	prints []uint32 // 0: nothing is there
	flags  []uint16
}

const tableSize = 1 << 19

// place is where a word is, or would be.
func (t *Table) place(name string) (at int, print uint32) {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 29
	print = uint32(h>>32) | 1
	for at = int(h % tableSize); t.prints[at] != 0 && t.prints[at] != print; at = (at + 1) % tableSize {
	}
	return at, print
}

// Of is what a word is known to be, or 0.
func (t *Table) Of(name string) uint16 {
	at, _ := t.place(name)
	return t.flags[at]
}

func (t *Table) set(name string, flags uint16) {
	at, print := t.place(name)
	t.prints[at], t.flags[at] = print, flags
}

// names.gz holds the words in sections, of which a line with # says what its words are. Each word begins with a letter that says how many bytes it
// has in common with the one before it, from A for none on.
//
//go:embed names.gz
var compressed []byte

// linkedIn reads the words that are linked in, which never change.
func linkedIn() *Table {
	t := &Table{Lists: lists(), prints: make([]uint32, tableSize), flags: make([]uint16, tableSize)}
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	var raw []byte
	if err == nil {
		raw, err = io.ReadAll(r)
	}
	if err != nil {
		panic(fmt.Sprintf("lexicon: the names that are linked in cannot be read: %v", err))
	}
	unaccented := strings.NewReplacer(words("unaccented")...)
	flags, last := uint16(0), ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		if head, ok := strings.CutPrefix(line, "# "); ok {
			flags, last = 0, ""
			for _, f := range strings.Fields(head) {
				flags |= map[string]uint16{"given": Given, "family": Family, "listed": Listed, "word": Word, "place": PlaceName}[f]
			}
			continue
		}
		last = last[:line[0]-'A'] + line[1:]
		t.set(last, flags|t.Of(last))
		if flags&(Given|Family) != 0 {
			if plain := unaccented.Replace(last); plain != last {
				t.set(plain, flags|t.Of(plain))
			}
		}
	}
	return t
}
