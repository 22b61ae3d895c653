package detect

import (
	"context"
	"strings"

	"durward.internal/services/platform/detect/lexicon"
)

// Names that no sentence tells: the line above an address in a letter or under one, and names in lines without any capital, as people type them.

// maxLetterLine is how long a line with a name is at most, and maxSmallLine one without a capital.
const maxLetterLine, maxSmallLine = 48, 240

// letterheads adds the names that are a line of their own right above an address, a telephone's number or a mailbox.
func (s *scan) letterheads() {
	for i, n := 0, len(s.spans); i < n; i++ {
		o := s.spans[i]
		if o.Type != Address && o.Type != Phone && o.Type != Email {
			continue
		}
		end := o.From
		for end > 0 && o.From-end < 4 && strings.IndexByte(" ,\t>", s.text[end-1]) >= 0 {
			end--
		}
		if end == 0 || s.text[end-1] != '\n' {
			continue
		}
		for above := 0; above < 3 && end > 0 && s.text[end-1] == '\n'; above++ {
			end--
			for end > 0 && strings.IndexByte(" ,\r", s.text[end-1]) >= 0 && o.From-end < 4*maxLetterLine {
				end--
			}
			begin := max(0, end-maxLetterLine)
			line := strings.LastIndexByte(s.text[begin:end], '\n')
			if line < 0 && begin > 0 {
				break
			}
			begin += line + 1
			first := begin
			for first < end && (s.text[first] == ' ' || s.text[first] == '>') {
				first++
			}
			if from := s.nameLine(first, end); from >= 0 {
				s.add(from, end, Person, 55, "a line with a name alone, above an address")
				break
			}
			end = begin
		}
	}
}

// nameLine returns where a name begins in a line that has two to four words with capitals, a title, initials and small words of names, and
// nothing else; -1 where the line has other words.
func (s *scan) nameLine(begin, end int) int {
	from, words := -1, 0
	for at := begin; at < end; {
		if s.text[at] == ' ' {
			at++
			continue
		}
		w := s.wordAt(at)
		switch {
		case w.to == at || w.to > end:
			return -1
		case w.flags&lexicon.Title != 0 && words == 0:
			if at = w.to; s.at(at) == '.' {
				at++
			}
			continue
		case kinds[s.text[at]] != kindUpper:
			if !s.words.Joins[s.text[at:w.to]] {
				return -1
			}
		case w.to-at == 1 && s.at(w.to) == '.':
			w.to++
		case !s.nameLike(w) || w.flags&(lexicon.Street|lexicon.Word) != 0 && w.flags&lexicon.Name == 0:
			return -1
		default:
			words++
		}
		if from < 0 {
			from = at
		}
		at = w.to
	}
	if words < 2 || words > 4 {
		return -1
	}
	return from
}

// smallLetters adds given names, and the names behind them, in lines of sentences that have no capital, digit or sign of a program.
func (s *scan) smallLetters() {
	for from := 0; from < len(s.text); {
		to := len(s.text)
		if i := strings.IndexByte(s.text[from:], '\n'); i >= 0 {
			to = from + i
		}
		if line := s.text[from:to]; len(line) <= maxSmallLine && plainLine(line) {
			if strings.ContainsAny(line, "0123456789") {
				s.smallAddresses(line, from)
			}
			if prose, _ := s.proseIn(line); prose {
				s.smallNames(from, to)
			}
		}
		from = to + 1
	}
}

// smallAddresses adds what would be an address if each word of a line had a capital.
func (s *scan) smallAddresses(line string, from int) {
	raised := []byte(line)
	for i := range raised {
		if c := raised[i]; c >= 'a' && c <= 'z' && (i == 0 || raised[i-1] == ' ') && !s.words.Joins[line[i:smallEnd(line, i)]] {
			if raised[i] &^= 0x20; smallEnd(line, i) == i+2 {
				raised[i+1] &^= 0x20 // a state
			}
		}
	}
	other := scan{text: string(raised), words: s.words}
	if other.run(context.Background()) != nil {
		return
	}
	for _, o := range other.spans {
		if o.Type == Address && o.Confidence >= 75 {
			s.add(from+o.From, from+o.To, Address, 60, o.Why+", in a line without capitals")
		}
	}
}

// smallEnd is where the word in small letters that stands in a line ends.
func smallEnd(line string, at int) int {
	for at < len(line) && is(line[at], isLower) {
		at++
	}
	return at
}

// plainLine reports whether a line has small letters, digits and the signs of sentences alone.
func plainLine(line string) bool {
	for i := range len(line) {
		if c := line[i]; !is(c, isLower|isDigit) && strings.IndexByte(" ,.?!'-\":;()#/", c) < 0 {
			return false
		}
	}
	return true
}

func (s *scan) smallNames(from, to int) {
	for at := from; at < to; {
		if !is(s.text[at], isLower) {
			at++
			continue
		}
		end := s.smallWord(at)
		if flags := s.small(at, end); end-at > 3 && flags&lexicon.Given != 0 && flags&(lexicon.Word|lexicon.PlaceName|lexicon.Ambiguous|lexicon.NotName) == 0 && !is(s.at(end), isDigit) {
			stop := end
			for s.at(stop) == ' ' && stop-end < maxNameWord {
				next := s.smallWord(stop + 1)
				if flags := s.small(stop+1, next); flags&lexicon.Name == 0 || flags&lexicon.Word != 0 {
					break
				}
				stop = next
			}
			s.add(at, stop, Person, 45, "a given name in a line without capitals")
			end = stop
		}
		at = end
	}
}

// smallWord is where a word in small letters ends.
func (s *scan) smallWord(at int) int { return smallEnd(s.text, at) }

// small is what a word in small letters would be with a capital.
func (s *scan) small(from, to int) uint16 {
	var w [maxNameWord]byte
	if to-from < 3 || to-from > len(w) || s.text[from] >= 0x80 {
		return 0
	}
	n := copy(w[:], s.text[from:to])
	w[0] &^= 0x20
	return s.words.Of(string(w[:n]))
}
