package clean_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"durward.internal/services/platform/clean"

	"durward.internal/services/platform/platformtest/input"
	"durward.internal/services/platform/platformtest/testfile"
)

func TestText(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"colour":                        {"\x1b[31mred\x1b[0m", "red"},
		"cursor and erase":              {"a\x1b[2J\x1b[1;1Hb", "ab"},
		"title, BEL":                    {"a\x1b]0;owned\x07b", "ab"},
		"hyperlink, ST":                 {"a\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\b", "aclickb"},
		"clipboard, 8-bit":              {"a\u009d52;c;ZXZpbA==\u009cb", "ab"},
		"8-bit CSI":                     {"a\u009b31mb", "ab"},
		"DCS":                           {"a\x1bPq#0;2;0\x1b\\b", "ab"},
		"APC, PM, SOS":                  {"\x1b_a\x1b\\\x1b^b\x1b\\\x1bXc\x1b\\d", "d"},
		"reset and charset":             {"a\x1bcb\x1b(0c", "abc"},
		"unterminated OSC":              {"a\x1b]0;title stays", "a0;title stays"},
		"unfinished CSI":                {"a\x1b[12", "a12"},
		"lone ESC":                      {"a\x1b", "a"},
		"nested ESC":                    {"a\x1b\x1b[31mb", "ab"},
		"C0":                            {"a\x00\x01\x08b\x7fc", "abc"},
		"backspace overwrite":           {"safe\b\b\b\bevil", "safeevil"},
		"C1":                            {"a\u0080\u0099b", "ab"},
		"line breaks":                   {"a\nb\r\nc\rd\te\vf", "a b c d e f"},
		"unicode line breaks":           {"a\u2028b\u2029c\u0085d", "a b c d"},
		"odd spaces":                    {"a\u00a0b\u2003c\u3000d", "a b c d"},
		"bidi override":                 {"invoice\u202egpj.exe", "invoicegpj.exe"},
		"bidi isolates, marks":          {"\u2066a\u2069\u200fb\u061cc", "abc"},
		"zero width":                    {"pass\u200bword\ufeff\u2060\u200d", "password"},
		"tag characters":                {"ok\U000e0069\U000e0067\U000e006e", "ok"},
		"variation selectors":           {"a\ufe0fb\U000e0101c", "abc"},
		"soft hyphen, fillers":          {"a\u00adb\u3164c\u115fd\uffa0", "abcd"},
		"private, non-character":        {"a\ue000b\U0010ffffc\ufdd0d", "abcd"},
		"invalid UTF-8":                 {"a\xffb\xc3(c\xed\xa0\x80d", "ab(cd"},
		"single-byte CSI":               {"a\x9b31mb", "ab"},
		"single-byte OSC, ST":           {"a\x9d0;owned\x9cb", "ab"},
		"single-byte DCS, BEL":          {"a\x90q\x07b", "ab"},
		"single-byte DCS, no end":       {"a\x90q b", "aq b"},
		"single-byte ST in an ESC form": {"a\x1b]0;t\x9c\u2713\x07b", "ab"},
		"8-bit DCS, APC, PM, SOS":       {"\u0090a\u009c\u009fb\u009c\u009ec\u009c\u0098d\u009ce", "e"},
		"7-bit begins, 8-bit ends":      {"a\x1bPq\u009cb", "ab"},
		"8-bit begins, 7-bit ends":      {"a\u009d0;t\x1b\\b", "ab"},
		"DCS, no end":                   {"a\x1bPq stays", "aq stays"},
		"two ESC before CSI":            {"a\x1b\x1b\x1b[2Jb", "ab"},
		"CSI, private and intermediate": {"a\x1b[?25l\x1b[1 qb", "ab"},
		"CSI broken by a control":       {"a\x1b[3\x001mb", "a31mb"},
		"lone ST":                       {"a\x1b\\\u009c\x9cb", "ab"},
		"rich markup":                   {"[bold red]x[/bold red][link=http://e]y[/link][/]", "xy"},
		"rich, colours":                 {"[#ff0000 on rgb(1,2,3)]x[bright_red]y[dark_orange3]z", "xyz"},
		"rich, action":                  {"[@click=app.bell]x[/]", "x"},
		"rich, split by ESC":            {"[bo\x1b[0mld]x", "x"},
		"rich, nested":                  {"[[bold]bold]x", "x"},
		"rich, abbreviated":             {"[b]x[/b] [i]y[/i], word[/u]", "x y, word"},
		"rich, not a style":             {"[not bold]x[on red]y", "xy"},
		"not markup":                    {"[GPU 0] a[1, 2] [] [x] [see note]", "[GPU 0] a[1, 2] [] [x] [see note]"},
		"plain text of many scripts":    {"Müller 東京 Ω naïve שלום émoji 🚀", "Müller 東京 Ω naïve שלום émoji 🚀"},
		"genuine replacement character": {"a\ufffdb", "a\ufffdb"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := clean.Text(tc.in, 1000); got != tc.want {
				t.Errorf("Text(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}

// Text of everyday use comes out as it went in, and costs nothing where it is ASCII.
func TestOrdinaryTextSurvives(t *testing.T) {
	for name, in := range map[string]string{
		"Go":             "func f(m map[string][]int) int {\n\treturn m[\"a\"][i] + row[b] + g()[0] // a[i][c]\n}",
		"Python":         "x = data[1:]; y = data[-1]; print(f'{x[i]}')  # list[str]",
		"Rust, C":        "let v: [u8; 4] = [0; 4]; *p = &arr[i << 2];",
		"shell":          "if [ -f \"$file\" ] && [[ $x == y ]]; then echo ${list[@]}; fi | grep '[a-z]*' > out",
		"JSON":           `{"list":[1,2,[3]],"s":["b","i",true,null],"path":"C:\\x"}`,
		"Markdown":       "# Title\n\n- [ ] open\n- [x] done\n\n[link](https://example.com/a_b) **bold** `code` ![alt](x.png)\n\n[^1]: note",
		"log lines":      "[INFO] ready\n[2026-11-21T12:00:00Z] [warn] 3 of 5\n[GPU 0] 24 GB (12 %)",
		"ini, TOML":      "[default]\nregion = eu\n[none]\n[[services]]\nname = 'a'",
		"a table":        "| id | state |\n|----|-------|\n| a  | ok    |",
		"regex, glob":    `^[a-zA-Z0-9][a-zA-Z0-9_\-]{0,63}$ *.[ch] [!a-z]`,
		"mention, slice": "[@alice] wrote xs[:n], ys[n:], zs[i:j]",
		"link by name":   "see [link] and [on] and [not]",
		"maths":          "a < b && b > c; x != y; 50 % 7; [0, 1)",
		"HTML":           "<b>bold</b> <a href=\"/x\">y</a> &amp; &lt;",
	} {
		t.Run(name, func(t *testing.T) {
			if got := clean.Block(in, 10_000); got != in {
				t.Errorf("Block(%q) = %q", in, got)
			}
			if n := testing.AllocsPerRun(100, func() { clean.Block(in, 10_000) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
	for _, in := range []string{"Demo chat (24 GB), 2nd", "[INFO] x", "array[0] and a[i]"} {
		if got := clean.Line(in, 100); got != in {
			t.Errorf("Line(%q) = %q", in, got)
		}
		if n := testing.AllocsPerRun(100, func() { clean.Line(in, 100); clean.Text(in, 100) }); n != 0 {
			t.Errorf("%q: %v allocations", in, n)
		}
	}
}

func TestLengthAndLayout(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{clean.Text("abcdef", 4), "abc…"},
		{clean.Text("äöüß", 4), "äöüß"},
		{clean.Text("äöüßx", 4), "äöü…"},
		{clean.Text("abc", 0), ""},
		{clean.Text("abc", -1), ""},
		{clean.Text("abc", 1), "…"},
		{clean.Text("a \n b", 10), "a   b"},
		{clean.Line("  a \n\t b\u00a0 ", 10), "a b"},
		{clean.Line("\x1b[31m \x1b[0m", 10), ""},
		{clean.Block("a\r\n\tb\rc\u2028d\x1b[31m", 20), "a\n\tb\nc\nd"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain Ω 🚀":       "plain Ω 🚀",
		"a\u202eb":        `a\u{202E}b`,
		"a\x1b[31mb":      `a\u{1B}[31mb`,
		"a\nb\t":          `a\u{A}b\u{9}`,
		"a\xffb":          `a\x{FF}b`,
		"a\u00a0b":        `a\u{A0}b`,
		"\U000e0041":      `\u{E0041}`,
		`lit \u{202E}`:    `lit \u{5C}u{202E}`,
		`lit \x{FF}`:      `lit \u{5C}x{FF}`,
		`{"a":"C:\\x\n"}`: `{"a":"C:\\x\n"}`,
		"[bold]x":         "[bold]x",
	} {
		if got := clean.Visible(in); got != want {
			t.Errorf("Visible(%q) = %q, want %q", in, got, want)
		}
	}
}

// wholesome fails on anything that a cleaned text must not hold.
func wholesome(t *testing.T, out string, lines bool) {
	t.Helper()
	if !utf8.ValidString(out) {
		t.Fatalf("not UTF-8: %q", out)
	}
	for _, r := range out {
		if r == ' ' || lines && (r == '\n' || r == '\t') {
			continue
		}
		if unicode.In(r, unicode.C, unicode.Z) && !unassigned(r) || r >= 0xFE00 && r <= 0xFE0F || r >= 0xE0000 && r <= 0xE0FFF {
			t.Fatalf("%U is left in %q", r, out)
		}
	}
}

// unassigned code points are in category C for some tables of Unicode and letters in later ones; they show as boxes.
func unassigned(r rune) bool {
	return !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Z)
}

func check(t *testing.T, in string) {
	t.Helper()
	const limit = 300
	for name, f := range map[string]func(string, int) string{"Text": clean.Text, "Block": clean.Block, "Line": clean.Line} {
		out := f(in, limit)
		wholesome(t, out, name == "Block")
		if n := utf8.RuneCountInString(out); n > limit {
			t.Fatalf("%s returned %d characters", name, n)
		}
		if again := f(out, limit); again != out {
			t.Fatalf("%s is not idempotent: %q, then %q", name, out, again)
		}
	}
	sentence := clean.Sentence(in, limit)
	if clean.Leaks(sentence) || clean.Sentence(sentence, limit) != sentence {
		t.Fatalf("Sentence returned %q", sentence)
	}
	wholesome(t, clean.Visible(in), false)
}

func FuzzText(f *testing.F) {
	for _, seed := range []string{
		"", "plain", "\x1b[31mred\x1b[0m", "\x1b]0;t\x07", "\x1b]unterminated", "\u202e\u200b\U000e0041", "[bold]x[/]", "[[b]b]",
		"a\xff\xc3(", "[bold" + strings.Repeat(" ", 200) + "]", "[\x1b bold]", "\u009b1m\u009dx\u009c", "\r\n\r", "\ufdd0\U0001fffe",
		"\x9b1m\x9dx\x9c", "a\x90\xc2\x9c", "a[b][i]x[/b]", "a[bold][i]", "[not b]", "[rgb(]1)]", "[@x=]", "see /etc/passwd, main.go:12",
		"a [b]  [i] c", "[\u200bb]", "x[\x1b[mi]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) { check(t, in) })
}

// Two texts never look the same to an approver.
func FuzzVisibleIsInjective(f *testing.F) {
	f.Add("a\u202e", `a\u{202E}`)
	f.Add("\xff", `\x{FF}`)
	f.Add(`\u{5C}u{A}`, "\\\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a != b && clean.Visible(a) == clean.Visible(b) {
			t.Fatalf("%q and %q both show as %q", a, b, clean.Visible(a))
		}
	})
}

// Strings that have broken other programs. The corpus is no part of the repository; without it our own table above is what
// counts, and a taste of the corpus.
func TestNaughtyStrings(t *testing.T) {
	list := []string{"\u202e\x1b[2J", "\ufdd0\U000e0001", "\u200b\ufeff\u2028", "\u0085\x00\x7f"}
	if dir := input.Corpora(t); dir == "" {
		t.Log("CORPORA is not set: only the built-in strings were looked at")
	} else {
		b := testfile.Read(t, filepath.Join(dir, "minimaxir__big-list-of-naughty-strings", "blns.json"))
		if list = nil; json.Unmarshal(b, &list) != nil || len(list) < 100 {
			t.Fatalf("only %d strings", len(list))
		}
	}
	for _, s := range list {
		check(t, s)
	}
}

// A megabyte of unfinished sequences takes linear time; a quadratic search would take minutes.
func TestLongHostileInput(t *testing.T) {
	for _, unit := range []string{"\x1b]", "\x1b[1", "[", "[bold", "\u009d", "[[b]b]"} {
		wholesome(t, clean.Text(strings.Repeat(unit, 1<<20/len(unit)), 100), false)
	}
}

func TestPlain(t *testing.T) {
	const shown = "azAZ09 ./_:-"
	if got := clean.Plain(shown + "<@all>\n`é\x1b"); got != shown+"??all?????" {
		t.Errorf("%q", got)
	}
}
