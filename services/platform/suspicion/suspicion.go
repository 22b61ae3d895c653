// Package suspicion says what about the name of a host is worth a second look before anybody is let go there (CFG-6): an ending that is
// mostly abused, a name that looks like another one's, letters of several scripts, a label that is long enough to carry data out. It looks
// names up nowhere.
//
// It runs in egress and in operators' programs. What it is given is hostile; what it says is a hint for a person, who decides.
package suspicion

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// Severity is how much a flag weighs. The zero value is none at all.
type Severity int

// The severities.
const (
	None Severity = iota
	Low
	Medium
	High
)

var words = []string{"off", "low", "medium", "high"}

func (s Severity) String() string { return words[min(max(s, None), High)] }

// ParseSeverity reads the word for one; "" and "off" are None.
func ParseSeverity(word string) (Severity, error) {
	if word == "" {
		return None, nil
	}
	if i := slices.Index(words, word); i >= 0 {
		return Severity(i), nil
	}
	return None, fmt.Errorf("%q is none of %s", word, strings.Join(words, ", "))
}

// Flag is one thing about a host. Why is a sentence of ours, which names no host but a known one.
type Flag struct {
	Severity Severity
	Why      string
}

// Worst is the highest severity among flags.
func Worst(flags []Flag) (worst Severity) {
	for _, f := range flags {
		worst = max(worst, f.Severity)
	}
	return worst
}

// abused are endings under which most of what is registered is abused, by the reports of those who count it (Spamhaus, Interisle), and
// those that are file names.
var abused = strings.Fields(`accountant bid buzz cam cf click country cricket cyou date download faith ga gdn gq icu loan men ml mov party
	racing rest review science stream tk top trade win work xyz zip`)

// known are names that others are made to look like: where agents' users have accounts, and where programs and models come from.
var known = strings.Fields(`amazon.com anthropic.com apple.com cloudflare.com crates.io docker.com dropbox.com facebook.com github.com
	gitlab.com golang.org google.com huggingface.co kubernetes.io linkedin.com microsoft.com netflix.com npmjs.com nvidia.com openai.com
	paypal.com pypi.org pytorch.org slack.com stripe.com ubuntu.com`)

// delivery are networks that deliver other people's content: the name says nothing of whose.
var delivery = strings.Fields(`akamaihd.net akamaized.net amazonaws.com azureedge.net b-cdn.net bunnycdn.com cdn77.org cdnjs.cloudflare.com
	cloudfront.net edgekey.net fastly.net fastlylb.net gstatic.com jsdelivr.net stackpathcdn.com unpkg.com`)

// CDN returns the delivery network that a host belongs to; "" for none.
func CDN(host string) string {
	for _, network := range delivery {
		if host == network || strings.HasSuffix(host, "."+network) {
			return network
		}
	}
	return ""
}

// longLabel is the length from which one label of a name can carry a secret out in a look-up.
const longLabel = 40

// Of returns what is worth a second look about a host, as destination.ParseHost writes it, the gravest first.
func Of(host string) []Flag {
	if _, err := netip.ParseAddr(host); err == nil {
		return []Flag{{Low, "it is an address, of which no name says whose it is"}}
	}
	var flags []Flag
	add := func(s Severity, format string, args ...any) {
		flags = append(flags, Flag{s, fmt.Sprintf(format, args...)})
	}
	own, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil {
		own = host
	}
	if severity, how := lookalike(host, own); severity != None {
		add(severity, "it %s, and is not", how)
	}
	if scripts := mixed(host); len(scripts) > 1 {
		add(High, "one part of its name has letters of several scripts: %s", strings.Join(scripts, ", "))
	} else if len(scripts) == 1 && scripts[0] != "Latin" {
		add(Low, "its name is written in %s", scripts[0])
	}
	if end := own[strings.LastIndexByte(own, '.')+1:]; slices.Contains(abused, end) {
		add(Medium, "most of what is registered under .%s is abused", end)
	}
	if slices.ContainsFunc(strings.Split(host, "."), func(label string) bool { return len(label) >= longLabel && !strings.HasPrefix(label, "xn--") }) {
		add(Medium, "a part of its name is long enough to carry data out")
	}
	slices.SortStableFunc(flags, func(a, b Flag) int { return int(b.Severity - a.Severity) })
	return flags
}

// lookalike finds a known name that a host is made to look like: its own name reads the same or has one letter more, less or other; or the
// known one stands in front of another's.
func lookalike(host, own string) (severity Severity, how string) {
	if slices.Contains(known, own) {
		return None, ""
	}
	label, _, _ := strings.Cut(own, ".")
	seen := skeleton(label)
	for _, name := range known {
		brand, _, _ := strings.Cut(name, ".")
		switch {
		case seen == skeleton(brand) && label != brand:
			return High, "is written to be read as " + name
		case strings.HasPrefix(host, name+".") || strings.Contains(host, "."+name+"."):
			return High, "begins like " + name
		case len(brand) > 5 && oneOff(seen, skeleton(brand)):
			severity, how = Medium, "is one letter away from "+name
		case strings.HasPrefix(label, brand+"-") || strings.HasSuffix(label, "-"+brand):
			severity, how = Medium, "has in its name that of "+name
		}
	}
	return severity, how
}

// same are letters that are read as others.
var same = strings.NewReplacer("0", "o", "1", "l", "3", "e", "5", "s", "rn", "m", "vv", "w", "i", "l",
	"а", "a", "е", "e", "о", "o", "р", "p", "с", "c", "у", "y", "х", "x", "ѕ", "s", "і", "l", "ј", "j", "ԁ", "d", "ɡ", "g", "ո", "n", "ο", "o", "α", "a", "ν", "v",
	"ı", "l", "ł", "l", "ö", "o", "ó", "o", "ü", "u", "é", "e", "á", "a", "à", "a", "ä", "a", "ñ", "n", "ç", "c")

// skeleton is a label as it is read at a glance.
func skeleton(label string) string {
	shown, err := idna.ToUnicode(label)
	if err != nil {
		shown = label
	}
	return same.Replace(strings.ReplaceAll(strings.ToLower(shown), "-", ""))
}

// oneOff reports whether two words differ by one letter that is more, less or another.
func oneOff(a, b string) bool {
	x, y := []rune(a), []rune(b)
	if len(x) > len(y) {
		x, y = y, x
	}
	if len(y)-len(x) > 1 || a == b {
		return false
	}
	i := 0
	for i < len(x) && x[i] == y[i] {
		i++
	}
	if len(x) == len(y) {
		return slices.Equal(x[i+1:], y[i+1:])
	}
	return slices.Equal(x[i:], y[i+1:])
}

// scripts are those whose letters are told apart; Japanese uses three.
var scripts = []struct {
	name  string
	table *unicode.RangeTable
}{
	{"Latin", unicode.Latin}, {"Cyrillic", unicode.Cyrillic}, {"Greek", unicode.Greek}, {"Armenian", unicode.Armenian}, {"Hebrew", unicode.Hebrew},
	{"Arabic", unicode.Arabic}, {"Han", unicode.Han}, {"Han", unicode.Hiragana}, {"Han", unicode.Katakana}, {"Hangul", unicode.Hangul},
	{"Thai", unicode.Thai}, {"Devanagari", unicode.Devanagari}, {"Cherokee", unicode.Cherokee}, {"Georgian", unicode.Georgian},
}

// mixed returns the scripts of the part of a name that has most of them.
func mixed(host string) (most []string) {
	for label := range strings.SplitSeq(host, ".") {
		shown, err := idna.ToUnicode(label)
		if err != nil || shown == label {
			continue
		}
		var found []string
		for _, r := range shown {
			for _, s := range scripts {
				if unicode.Is(s.table, r) && !slices.Contains(found, s.name) {
					found = append(found, s.name)
				}
			}
		}
		if len(found) > len(most) {
			most = found
		}
	}
	slices.Sort(most)
	return most
}
