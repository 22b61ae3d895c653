// Package lexicon is what detect knows of words: which are names of people, of places and of streets. It is linked in and never changes, and it
// trusts nothing and holds nothing of the texts that are looked through.
package lexicon

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
)

// What a word is known to be.
const (
	Given     = 1 << iota // a given name
	Family                // a family name
	Listed                // a given or a family name, of a list that does not say which
	Word                  // a word of English, too
	Title                 // Mr, Dr
	NotName               // never one: machines, projects, months
	Organ                 // what ends the name of a company or a place
	PlaceName             // a town, a country, a people or its language
	Ambiguous             // a name as well as a place, a machine or a program
	Street                // what a street's name ends with
	Suffix                // what the name of a street may end with, where more says that it is one

	Name = Given | Family | Listed
)

// Words is what words are known to be. It is read once, when the first text is looked through.
var Words = sync.OnceValue(func() *Table {
	out := linkedIn()
	put := func(list string, flag uint16, alone bool) {
		for _, w := range words(list) {
			if alone {
				out.set(w, 0)
			}
			out.set(w, out.Of(w)|flag)
		}
	}
	put("title", Title, true)
	put("notName", NotName, true)
	put("ambiguous", Ambiguous, false)
	put("placeName", PlaceName, false)
	for _, list := range []map[string]bool{out.Countries, out.StateNames} {
		for name := range list {
			name = strings.ReplaceAll(name, " ", "_")
			out.set(name, out.Of(name)|PlaceName)
		}
	}
	put("organ", Organ, true)
	put("street", Street, false)
	for _, w := range words("suffix") {
		out.set(w, out.Of(w)|Suffix)
		out.set(w+"s", out.Of(w+"s")|Suffix)
	}
	return out
})

// lists.txt holds the lists that follow, each after a line with #, its name and what it is.
//
//go:embed lists.txt
var text string

// sections are the lists' texts by their names.
var sections = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	for section := range strings.SplitSeq("\n"+text, "\n# ") {
		head, list, _ := strings.Cut(section, "\n")
		name, _, _ := strings.Cut(head, ": ")
		out[name] = list
	}
	return out
})

// list is the text of a list, which is there.
func list(name string) string {
	text, ok := sections()[name]
	if !ok {
		panic(fmt.Sprintf("lexicon: lists.txt holds no %s", name))
	}
	return text
}

func words(name string) []string { return strings.Fields(list(name)) }

func set(name string) map[string]bool {
	out := map[string]bool{}
	for _, w := range words(name) {
		out[w] = true
	}
	return out
}

// names are those between commas.
func names(list string) map[string]bool {
	out := map[string]bool{}
	for name := range strings.SplitSeq(list, ",") {
		out[strings.Join(strings.Fields(name), " ")] = true
	}
	return out
}

// Lists are the lists of lists.txt, which says what each holds.
type Lists struct {
	Roads, FlatWords, FlatOnly, FloorWords                                                                *Folded
	StreetWords, NotStreets, Joins, Compass, Towns, States, StateWords, TrunkForms, PlainForms, NotDomain map[string]bool
	StateNames, Countries                                                                                 map[string]bool
	PersonalWords, PeopleBefore, PeopleAfter, BesideBefore, BesideAfter                                   map[uint64]bool
	// StreetEnds are how words end that name a street, by their last byte.
	StreetEnds [256][]string

	common [1 << 11]uint64
}

func lists() Lists {
	out := Lists{
		Roads: foldedSet("roads"), FlatWords: foldedSet("flatWords"), FlatOnly: foldedSet("flatOnly"), FloorWords: foldedSet("floorWords"),
		StreetWords: set("streetWords"), NotStreets: set("notStreets"), Joins: set("joins"), Compass: set("compass"), Towns: set("towns"),
		States: set("states"), StateWords: set("stateWords"), TrunkForms: set("trunkForms"), PlainForms: set("plainForms"), NotDomain: set("notDomain"),
		StateNames: names(list("stateNames")), Countries: names(list("countries")),
		PersonalWords: packedSet("personalWords"), PeopleBefore: packedSet("peopleBefore"), PeopleAfter: packedSet("peopleAfter"),
		BesideBefore: packedSet("besideBefore"), BesideAfter: packedSet("besideAfter"),
	}
	for _, end := range words("streetEnds") {
		last := end[len(end)-1]
		out.StreetEnds[last] = append(out.StreetEnds[last], end)
	}
	out.fillCommon()
	return out
}

// Folded is a set of words in small letters, with the lengths of those that begin, and of those that end, with a byte, by which most others are
// told from them.
type Folded struct {
	begin, end [256]uint32
	words      map[string]bool
}

func foldedSet(name string) *Folded {
	out := &Folded{words: set(name)}
	for w := range out.words {
		out.begin[w[0]] |= 1 << len(w)
		out.end[w[len(w)-1]] |= 1 << len(w)
	}
	return out
}

// Has reports whether a set has a word, whatever the case of its letters of ASCII.
func (f *Folded) Has(word string) bool {
	var lower [32]byte
	if word == "" || len(word) >= len(lower) || (f.begin[small(word[0])]&f.end[small(word[len(word)-1])])>>len(word)&1 == 0 {
		return false
	}
	for i := range len(word) {
		lower[i] = small(word[i])
	}
	return f.words[string(lower[:len(word)])]
}

func small(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c | 0x20
	}
	return c
}
