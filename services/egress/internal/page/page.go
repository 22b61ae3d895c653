// Package page turns a web page into plain Markdown, in one bounded pass over its tokens: no tree is built, so nothing grows faster than
// the page. It runs in egress; what it reads is hostile, and what it writes is a stranger's text all the same.
package page

import (
	"bytes"
	"maps"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// maxText bounds what a page becomes, in bytes: short links become long ones.
const maxText = 4 << 20

// maxLink bounds a link that is kept, in bytes: those of data: are pages of their own.
const maxLink = 1000

// Markdown returns the text that a reader of the page sees, with headings, lists, links and code marked. Links are made absolute by
// base, and kept where they are http or https. What a browser does not show (scripts, styles, hidden elements, comments) is left out.
// The result is at most a few times as long as the page.
func Markdown(raw []byte, base *url.URL) string {
	w := &writer{base: base}
	z := html.NewTokenizer(bytes.NewReader(raw))
	for w.out.Len() < maxText {
		switch z.Next() {
		case html.ErrorToken:
			return strings.TrimSpace(w.out.String())
		case html.TextToken:
			w.text(z.Text())
		case html.SelfClosingTagToken:
			if name, attributes := z.TagName(); !foreign[atom.Lookup(name)] { // those alone end so
				w.start(string(name), z, attributes)
			}
		case html.StartTagToken:
			name, attributes := z.TagName()
			w.start(string(name), z, attributes)
		case html.EndTagToken:
			name, _ := z.TagName()
			w.end(string(name))
		}
	}
	return strings.TrimSpace(w.out.String())
}

// unseen are elements whose content no browser shows as text.
var unseen = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Noscript: true, atom.Template: true, atom.Iframe: true, atom.Object: true, atom.Svg: true,
	atom.Math: true, atom.Select: true, atom.Textarea: true, atom.Canvas: true, atom.Audio: true, atom.Video: true, atom.Dialog: true,
}

// void are elements without an end.
var void = map[atom.Atom]bool{
	atom.Area: true, atom.Base: true, atom.Br: true, atom.Col: true, atom.Embed: true, atom.Hr: true, atom.Img: true, atom.Input: true,
	atom.Link: true, atom.Meta: true, atom.Source: true, atom.Track: true, atom.Wbr: true,
}

// foreign elements are those in which the slash of <svg/> counts: they are void then.
var foreign = map[atom.Atom]bool{atom.Svg: true, atom.Math: true}

// implied are elements whose end may be left out: what begins then, and what they are in that ends.
var implied = map[atom.Atom]struct{ begins, ends []atom.Atom }{
	atom.P:  {append(slices.Collect(maps.Keys(blocks)), atom.Hr, atom.Td, atom.Th), append(slices.Collect(maps.Keys(blocks)), atom.Td, atom.Th)},
	atom.Li: {[]atom.Atom{atom.Li}, []atom.Atom{atom.Ul, atom.Ol}},
	atom.Dt: {[]atom.Atom{atom.Dt, atom.Dd}, []atom.Atom{atom.Dl}}, atom.Dd: {[]atom.Atom{atom.Dt, atom.Dd}, []atom.Atom{atom.Dl}},
	atom.Td: {append(rows, atom.Td, atom.Th), append(rows, atom.Table)}, atom.Th: {append(rows, atom.Td, atom.Th), append(rows, atom.Table)},
	atom.Tr: {rows, append(rows, atom.Table)},
	atom.A:  {[]atom.Atom{atom.A}, nil},
}

var rows = []atom.Atom{atom.Tr, atom.Thead, atom.Tbody, atom.Tfoot}

// around are lists and tables: what begins and ends in one that is within an element of those is not about that element.
var around = map[atom.Atom]bool{atom.Ul: true, atom.Ol: true, atom.Dl: true, atom.Table: true}

// blocks stand on lines of their own.
var blocks = map[atom.Atom]string{
	atom.P: "\n\n", atom.Div: "\n", atom.Section: "\n\n", atom.Article: "\n\n", atom.Header: "\n\n", atom.Footer: "\n\n", atom.Main: "\n\n",
	atom.Nav: "\n\n", atom.Aside: "\n\n", atom.Ul: "\n\n", atom.Ol: "\n\n", atom.Dl: "\n\n", atom.Table: "\n\n", atom.Blockquote: "\n\n",
	atom.Form: "\n\n", atom.Figure: "\n\n", atom.Tr: "\n", atom.Dt: "\n", atom.Dd: "\n", atom.Title: "\n\n", atom.Body: "\n\n", atom.Li: "\n",
	atom.H1: "\n\n", atom.H2: "\n\n", atom.H3: "\n\n", atom.H4: "\n\n", atom.H5: "\n\n", atom.H6: "\n\n", atom.Pre: "\n\n",
}

var headings = map[atom.Atom]string{
	atom.Title: "# ", atom.H1: "# ", atom.H2: "## ", atom.H3: "### ", atom.H4: "#### ", atom.H5: "##### ", atom.H6: "###### ",
}

// writer is what is known at one place of a page. Of what is open it keeps no stack: one counter each.
type writer struct {
	base *url.URL
	out  strings.Builder
	// breaks are the newlines due before the next text, and space a blank; both wait until there is something to divide.
	breaks string
	space  bool
	// skipping is the element that is left out with all that is in it, "" for none, and depth how often it is open in itself; of an element
	// whose end may be left out, how many lists and tables are open in it.
	skipping string
	depth    int
	// pre and code count open elements of theirs; link is where the text goes that is being written, "" for none.
	pre, code int
	link      string
}

func (w *writer) start(name string, z *html.Tokenizer, attributes bool) {
	a := atom.Lookup([]byte(name))
	switch of, is := implied[atom.Lookup([]byte(w.skipping))]; {
	case w.skipping == "":
	case is && w.depth == 0 && slices.Contains(of.begins, a):
		w.skipping = ""
	case is && around[a], !is && name == w.skipping:
		w.depth++
		return
	default:
		return
	}
	var href, alt string
	hidden := unseen[a]
	for attributes {
		var key, value []byte
		key, value, attributes = z.TagAttr()
		switch string(key) {
		case "href":
			href = string(value)
		case "alt":
			alt = string(value)
		case "hidden":
			hidden = true
		case "aria-hidden":
			hidden = hidden || string(value) == "true"
		case "style":
			hidden = hidden || invisible(string(value))
		}
	}
	if hidden {
		if !void[a] {
			w.skipping, w.depth = name, 0
		}
		return
	}
	w.block(a)
	switch {
	case headings[a] != "":
		w.mark(headings[a])
	case a == atom.Li:
		w.mark("- ")
	case a == atom.Br:
		w.breaks = (w.breaks + "\n")[:min(len(w.breaks)+1, 2)]
	case a == atom.Hr:
		w.breaks = "\n\n"
		w.mark("---")
		w.breaks = "\n\n"
	case a == atom.Td || a == atom.Th:
		w.space = true
		w.mark("| ")
	case a == atom.Pre:
		w.mark("```\n")
		w.pre++
	case a == atom.Code && w.pre == 0:
		w.mark("`")
		w.code++
	case a == atom.Img && alt != "":
		w.text([]byte("[image: " + alt + "]"))
	case a == atom.A && w.link == "":
		if w.link = w.absolute(href); w.link != "" {
			w.mark("[")
		}
	}
}

func (w *writer) end(name string) {
	a := atom.Lookup([]byte(name))
	switch of, is := implied[atom.Lookup([]byte(w.skipping))]; {
	case w.skipping == "":
	case w.depth > 0:
		if is && around[a] || !is && name == w.skipping {
			w.depth--
		}
		return
	case name == w.skipping:
		w.skipping = ""
		return
	case slices.Contains(of.ends, a):
		w.skipping = ""
	default:
		return
	}
	switch {
	case a == atom.A && w.link != "":
		w.out.WriteString("](" + w.link + ")")
		w.link = ""
	case a == atom.Code && w.code > 0:
		w.code--
		w.out.WriteString("`")
	case a == atom.Pre && w.pre > 0:
		w.pre--
		w.out.WriteString("\n```")
	}
	w.block(a)
}

// block begins a new line, or a new paragraph.
func (w *writer) block(a atom.Atom) {
	if b := blocks[a]; len(b) > len(w.breaks) {
		w.breaks = b
	}
}

// invisible reports whether a style hides its element.
func invisible(style string) bool {
	style = strings.ToLower(strings.Join(strings.Fields(style), "")) + ";"
	return slices.ContainsFunc([]string{"display:none", "visibility:hidden", "opacity:0;", "font-size:0"}, func(way string) bool { return strings.Contains(style, way) })
}

// parentheses end a link in Markdown.
var parentheses = strings.NewReplacer("(", "%28", ")", "%29")

// absolute is a link as it can be fetched, "" if it cannot.
func (w *writer) absolute(href string) string {
	if href == "" || len(href) > maxLink {
		return ""
	}
	u, err := url.Parse(href)
	if err != nil {
		return ""
	}
	if w.base != nil {
		u = w.base.ResolveReference(u)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return ""
	}
	return parentheses.Replace(u.String())
}

// text writes text as a browser shows it: blanks are one, but where they count.
func (w *writer) text(raw []byte) {
	if w.skipping != "" {
		return
	}
	text := string(raw)
	if w.pre > 0 {
		w.mark(text)
		return
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		w.space = true
		return
	}
	w.space = w.space || text[0] == ' ' || text[0] == '\n' || text[0] == '\t'
	w.mark(strings.Join(words, " "))
	last := text[len(text)-1]
	w.space = last == ' ' || last == '\n' || last == '\t'
}

// mark writes text, with what is due before it.
func (w *writer) mark(text string) {
	switch {
	case w.out.Len() == 0:
	case w.breaks != "":
		w.out.WriteString(w.breaks[:min(len(w.breaks), 2)])
	case w.space:
		w.out.WriteByte(' ')
	}
	w.breaks, w.space = "", false
	w.out.WriteString(text)
}
