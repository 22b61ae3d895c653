package secret

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// trigger is three bytes, without the case of letters, at which a setting's name or a match of a rule may be.
type trigger struct {
	// rule is the rule's place in the list, or settingRule.
	rule int
	// at is how many bytes of the match stand before.
	at int
	// begin is what the match begins with.
	begin beginning
	// keyword: it is no match that begins here, but a setting's name, or a keyword around which a match is looked for.
	keyword string
}

const settingRule = -1

// prepared is a rule and what is computed from its expression.
type prepared struct {
	rule
	// assigned: what follows a match's beginning is as assignedTail says.
	assigned bool
	// begins is what matches begin with, where no three bytes tell that one is there.
	begins []beginning
	// form is how its matches are looked for. Most texts have nothing that makes a rule be tried, so it is computed when one does.
	form func() form
}

type form struct {
	longest int
	// word: a match begins where a word begins or ends.
	word bool
	// inside is the expression where a match does not begin the text.
	inside func() *regexp.Regexp
	// chunks: its expression is tried on all that follows, not at one place; nil: it is not.
	chunks func() *regexp.Regexp
}

// form computes how matches of a rule are looked for.
func (r rule) form() form {
	re := parse(r.source)
	f := form{longest: longest(re), word: beginsWord(re), inside: r.expression}
	if runsOn(re) {
		f.chunks = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(r.source) })
	}
	if within(re) {
		f.inside = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(?:` + re.String() + `)`) })
	}
	return f
}

// parse parses an expression that is linked in.
func parse(source string) *syntax.Regexp {
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		panic(fmt.Sprintf("secret: %s: %v", source, err))
	}
	return re
}

// index finds the rules that are to be tried, and where.
type index struct {
	rules []prepared
	// seen has a bit for each three bytes that are a trigger's, and before counts the bits that are set before each of its words.
	seen   [1 << 18 / 64]uint64
	before [1 << 18 / 64]uint16
	// triggers are those of each bit that is set in seen, in order.
	triggers [][]trigger
	// slow are the rules that are looked for around their keywords.
	slow []int
}

// class maps bytes to 6 bits: letters without case, digits, and signs that shapes begin with.
var class = func() (t [256]uint32) {
	next := uint32(1)
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789-_.:/<?&=~+@$%^*({[ \"") {
		t[c] = next
		if isLetter(c) {
			t[c-'a'+'A'] = next
		}
		next++
	}
	return t
}()

// classed are the bytes that have a class.
var classed = func() (s byteSet) {
	for c, k := range class {
		if k != 0 {
			s.add(byte(c))
		}
	}
	return s
}()

const keyMask = 1<<18 - 1

func keyOfBytes(a, b, c byte) uint32 { return class[a]<<12 | class[b]<<6 | class[c] }

// maxSpellings is how many triggers one beginning may have.
const maxSpellings = 64

// indexed is made once.
var indexed = sync.OnceValue(newIndex)

// newIndex makes the index from the rules.
func newIndex() *index {
	x, triggers := &index{}, spelledOut{}
	for _, name := range settingNames {
		triggers.add(name[0], name[1], name[2], trigger{rule: settingRule, keyword: name})
	}
	for i, r := range rules() {
		p := prepared{rule: r, form: sync.OnceValue(r.form)}
		begins := p.beginnings()
		if !triggers.addAll(i, begins) {
			p.begins = begins
			x.slow = append(x.slow, i)
			for _, k := range r.keywords {
				if len(k) >= 3 {
					triggers.add(k[0], k[1], k[2], trigger{rule: i, keyword: k})
				}
			}
		}
		x.rules = append(x.rules, p)
	}
	x.triggers = make([][]trigger, 0, len(triggers))
	for key := range triggers {
		x.seen[key>>6] |= 1 << (key & 63)
	}
	for i, word := range x.seen {
		x.before[i] = uint16(len(x.triggers)) // there are some thousands
		for ; word != 0; word &= word - 1 {
			x.triggers = append(x.triggers, triggers[uint32(i<<6|bits.TrailingZeros64(word))])
		}
	}
	return x
}

// of returns the triggers of three bytes of which seen has the bit.
func (x *index) of(key uint32) []trigger {
	return x.triggers[int(x.before[key>>6])+bits.OnesCount64(x.seen[key>>6]&(1<<(key&63)-1))]
}

// spelledOut are triggers by their three bytes.
type spelledOut map[uint32][]trigger

// beginnings returns what the rule's matches begin with, and sets assigned.
func (p *prepared) beginnings() []beginning {
	// An alternative of the head's own would go as far as the tail, the place of which \z takes here; one of the value's as far as the head.
	head, value, ok := strings.Cut(p.source, assignedTail)
	if ok && (!strings.Contains(strings.ReplaceAll(value, endInLog, ""), "|") || parse(p.source).Op == syntax.OpConcat) {
		re, err := syntax.Parse(closed(head+`\z`), syntax.Perl)
		if err == nil && re.Op == syntax.OpConcat {
			if list, whole := beginningsOf(re); whole {
				p.assigned = true
				return list
			}
		}
	}
	list, _ := beginningsOf(parse(p.source))
	return list
}

// closed closes the group that a cut left open.
func closed(source string) string {
	if strings.HasPrefix(source, "(?i:") {
		return source + ")"
	}
	return source
}

// addAll takes the triggers of a rule, or none where one of its beginnings has none.
func (s spelledOut) addAll(rule int, begins []beginning) bool {
	type spelled struct {
		sets    [3]byteSet
		trigger trigger
	}
	var all []spelled
	for _, b := range begins {
		best, fewest := spelled{}, maxSpellings+1
		for at := 0; at+3 <= len(b); at++ {
			if sets, n := spellings(b[at : at+3]); n > 0 && n < fewest {
				best, fewest = spelled{sets, trigger{rule: rule, at: at, begin: b}}, n
			}
		}
		if fewest > maxSpellings {
			return false
		}
		all = append(all, best)
	}
	for _, one := range all {
		one.sets[0].all(func(a byte) {
			one.sets[1].all(func(b byte) {
				one.sets[2].all(func(c byte) { s.add(a, b, c, one.trigger) })
			})
		})
	}
	return true
}

// spellings are three sets in lower case, and how many different three bytes that is; 0 where one of them has no class.
func spellings(sets beginning) (low [3]byteSet, n int) {
	n = 1
	for i, set := range sets {
		for j, word := range set {
			if word&^classed[j] != 0 {
				return low, 0
			}
		}
		const capitals = (1<<26 - 1) << ('A' & 63)
		set[1] = set[1]&^capitals | set[1]&capitals<<('a'-'A')
		low[i] = set
		n *= set.size()
	}
	return low, n
}

func (s spelledOut) add(a, b, c byte, t trigger) {
	key := keyOfBytes(a, b, c)
	same := func(other trigger) bool {
		return other.rule == t.rule && other.at == t.at && other.keyword == t.keyword && slices.Equal(other.begin, t.begin)
	}
	if !slices.ContainsFunc(s[key], same) {
		s[key] = append(s[key], t)
	}
}

// scan goes through one text.
type scan struct {
	text  string
	spans []Span
	// noSettings: only rules are looked for.
	noSettings bool
	// settingsTo is where the last setting ended, and ends where the last match of each rule did.
	settingsTo int
	ends       []int
	// looked is how far each rule has been looked for that a keyword announces.
	looked map[int]*int
}

// run finds settings and matches of rules. It looks at ctx before each expression that it tries, and every 64 KiB.
func (s *scan) run(ctx context.Context) error {
	x := indexed()
	s.ends = make([]int, len(x.rules))
	const every = 64 << 10
	key := uint32(0)
	for from := 0; from < len(s.text); from += every {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := s.text[from:min(from+every, len(s.text))]
		for i := range len(part) {
			key = (key<<6 | class[part[i]]) & keyMask
			if x.seen[key>>6]>>(key&63)&1 == 0 {
				continue
			}
			triggers := x.of(key)
			for t := range triggers {
				if err := s.pull(ctx, x, &triggers[t], from+i-2); err != nil {
					return err
				}
			}
		}
	}
	for _, i := range x.slow {
		if err := s.slowly(ctx, x, i); err != nil {
			return err
		}
	}
	return nil
}

// pull tries what a trigger at a place stands for.
func (s *scan) pull(ctx context.Context, x *index, t *trigger, at int) error {
	if t.rule == settingRule {
		if !s.noSettings && at >= s.settingsTo && hasPrefix(s.text[at:], t.keyword) {
			s.setting(at, t.keyword)
		}
		return nil
	}
	if t.keyword != "" {
		if !hasPrefix(s.text[at:], t.keyword) {
			return nil
		}
		if s.looked == nil {
			s.looked = map[int]*int{}
		}
		if s.looked[t.rule] == nil {
			s.looked[t.rule] = new(int)
		}
		return s.around(ctx, x, t.rule, at, s.looked[t.rule])
	}
	from := at - t.at
	if from < s.ends[t.rule] || !t.begin.of(s.text[from:]) {
		return nil
	}
	r := &x.rules[t.rule]
	switch {
	case r.assigned && !isAssigned(s.text[from+len(t.begin):]):
		return nil
	case r.needs != 0 && strings.IndexByte(s.text[from:min(from+r.form().longest, len(s.text))], r.needs) < 0:
		return nil
	case r.form().chunks != nil:
		return s.chunk(ctx, t.rule, r, from)
	}
	return s.try(ctx, t.rule, r, from)
}

// setting reads the setting whose name's last word begins at a place.
func (s *scan) setting(at int, word string) {
	s.settingsTo = at + len(word)
	if span, ok := setting(s.text, at, word); ok {
		s.spans = append(s.spans, span)
		s.settingsTo = span.To
	}
}

// try looks for the match of a rule that begins at a place.
func (s *scan) try(ctx context.Context, rule int, r *prepared, from int) error {
	f := r.form()
	if f.word && from > 0 && wordChar(s.text[from-1]) == wordChar(s.text[from]) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	to := min(from+f.longest+utf8.UTFMax, len(s.text))
	expression := r.expression
	if from > 0 {
		expression = f.inside
	}
	if m := expression().FindStringSubmatchIndex(s.text[from:to]); m != nil {
		s.take(rule, r, m, from, to)
	}
	return nil
}

// Expressions that run on are tried on so much of a text at a time, at least one on the beginning of which the next begins, so that
// time is linear in the text.
const step, overlap = 8 << 10, 4 << 10

// chunk looks for all matches of a rule in what follows a place.
func (s *scan) chunk(ctx context.Context, rule int, r *prepared, from int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	to := min(from+step+overlap, len(s.text))
	next := min(from+step, len(s.text))
	for _, m := range r.form().chunks().FindAllStringSubmatchIndex(s.text[from:to], -1) {
		if m[0] >= step {
			break
		}
		s.take(rule, r, m, from, to)
	}
	s.ends[rule] = max(s.ends[rule], next)
	return nil
}

// slowly looks for a rule whose matches no three bytes announce, near those of its keywords that are shorter than three bytes.
func (s *scan) slowly(ctx context.Context, x *index, rule int) error {
	for _, k := range x.rules[rule].keywords {
		if len(k) >= 3 {
			continue // a trigger
		}
		looked := 0
		for at := strings.Index(s.text, k); at >= 0 && looked < len(s.text); {
			if err := s.around(ctx, x, rule, at, &looked); err != nil {
				return err
			}
			next := strings.Index(s.text[at+1:], k)
			if next < 0 {
				break
			}
			at += 1 + next
		}
	}
	return nil
}

// around looks for matches of a rule around one of its keywords, from where it has been looked already, and moves that on.
func (s *scan) around(ctx context.Context, x *index, rule, at int, looked *int) error {
	r := &x.rules[rule]
	reach := cmp.Or(r.reach, step)
	from, to := max(at-reach, *looked), min(at+reach, len(s.text))
	for i := from; i < to; i++ {
		if i < s.ends[rule] || !r.begins[0][0].has(s.text[i]) && len(r.begins) == 1 ||
			!slices.ContainsFunc(r.begins, func(b beginning) bool { return b.of(s.text[i:]) }) {
			continue
		}
		if err := s.try(ctx, rule, r, i); err != nil {
			return err
		}
	}
	*looked = max(*looked, to)
	return nil
}

// take notes the secret of a match in text[from:to].
func (s *scan) take(rule int, r *prepared, m []int, from, to int) {
	value := secretOf(m, r.group)
	value[0], value[1] = value[0]+from, value[1]+from
	match := [2]int{m[0] + from, m[1] + from}
	s.ends[rule] = max(match[1], match[0]+1)
	if value[0] == value[1] || r.entropy > 0 && entropy(s.text[value[0]:value[1]]) <= r.entropy {
		return
	}
	for least := max(match[0]-maxWordBefore, 0); r.before && match[0] > least && nameByte(s.text[match[0]-1]); {
		match[0]--
	}
	if r.plausible != nil && !r.plausible(s.text, match, value) {
		return
	}
	if value[1] == to && to < len(s.text) {
		// It goes on beyond what was looked at; so does what is hidden, to the end of the line.
		if value[1] = len(s.text); strings.IndexByte(s.text[to:], '\n') >= 0 {
			value[1] = to + strings.IndexByte(s.text[to:], '\n')
		}
	} else if value[1] == match[1] {
		value[1] = s.wordEnd(value[1])
	}
	s.spans = append(s.spans, Span{From: value[0], To: value[1], Kind: r.kind})
}

// wordEnd returns where the word ends that a match ends in: some shapes have a length, and issuers make longer credentials.
func (s *scan) wordEnd(at int) int {
	end := at
	for end < min(at+maxMatch, len(s.text)) && nameByte(s.text[end]) {
		end++
	}
	for end > at && s.text[end-1] == '.' {
		end-- // a sentence's
	}
	return end
}

// wordChar is what \b takes for a character of a word.
func wordChar(c byte) bool { return nameByte(c) && c != '.' && c != '-' }
