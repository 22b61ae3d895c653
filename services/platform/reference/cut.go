package reference

import "unicode/utf8"

// longest is how long a reference is at most, in bytes.
const longest = len(jsonOpen) + idLength + len(jsonType) + MaxType + len(jsonClosing)

// Edge is the last place in a text, at most place, where it may be cut: between characters, and in no reference.
func Edge(text string, place int) int {
	place = min(max(place, 0), len(text))
	for place > 0 && place < len(text) && !utf8.RuneStart(text[place]) {
		place--
	}
	for i := max(place-longest+1, 0); i < place; i++ {
		if _, n, ok := at(text[i:]); ok {
			if i+n > place {
				return i
			}
			i += n - 1
		}
	}
	return place
}

// HoldBack is where a text ends without its last n bytes, references not counted: what begins there may go on where nobody looked.
func HoldBack(text string, n int) int {
	found, _ := Scan(text, nil)
	end := len(text)
	for i := len(found) - 1; i >= 0 && end-found[i].To < n; i-- {
		n -= end - found[i].To
		end = found[i].From
	}
	return Edge(text[:end], end-n)
}
