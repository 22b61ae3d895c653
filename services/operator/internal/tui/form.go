package tui

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/operator/internal/approval"
)

// form is how far a scope reaches.
type form struct {
	fields [5]editor
	at     int
}

// The fields of a form.
var labels = [5]string{"for how long (8h at most)", "how often (1000 at most)", "free arguments (any value)", "further tools", "any definition (yes/no)"}

func newForm() form {
	return form{fields: [5]editor{newEditor("1h"), newEditor("10"), newEditor(""), newEditor(""), newEditor("no")}}
}

func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// within reads the form.
func (f form) within() (approval.Within, error) {
	text := func(i int) string { return strings.TrimSpace(string(f.fields[i].text)) }
	length, err := duration(text(0), approval.MinStanding, approval.MaxStanding)
	if err != nil {
		return approval.Within{}, err
	}
	uses, err := strconv.Atoi(text(1))
	if err != nil || uses < 1 || uses > approval.MaxUses {
		return approval.Within{}, errors.New("how often is a number from 1 to 1000")
	}
	w := approval.Within{For: length.Truncate(time.Second), Uses: uses, Free: words(text(2)), Tools: words(text(3))}
	switch strings.ToLower(text(4)) {
	case "yes", "y":
		w.Any = true
	case "no", "n", "":
	default:
		return approval.Within{}, errors.New("any definition is yes or no")
	}
	return w, nil
}
