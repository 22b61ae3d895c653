package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"durward.internal/services/platform/statement"
)

// form is a request that credentials are put into. What a human signed stays byte for byte around them.
type form struct {
	req  *http.Request
	body string
}

// at finds a place, which nothing may stand in yet, and returns what puts a value there. Nothing of the request changes before.
func (f *form) at(place string) (put func(value string) error, err error) {
	switch spelled := statement.Place(place); {
	case spelled == "":
		return nil, fmt.Errorf("%s is %s", place, statement.NoPlace)
	case place[0] == '/':
		return f.member(place)
	default:
		if f.req.Header.Values(spelled) != nil {
			return nil, fmt.Errorf("the header %s is given a value and a credential", place)
		}
		return func(value string) error { f.req.Header.Set(spelled, value); return nil }, nil
	}
}

func (f *form) member(pointer string) (func(string) error, error) {
	to := strings.LastIndexByte(pointer, '/')
	if _, _, err := within(f.body, pointer[:to], pointer[to+1:]); err != nil {
		return nil, err
	}
	return func(value string) error {
		at, empty, err := within(f.body, pointer[:to], pointer[to+1:]) // where another credential moved it
		if err != nil {
			return err
		}
		member := fmt.Sprintf("%q:%s", pointer[to+1:], inJSON(value, false))
		if !empty {
			member += ","
		}
		f.body = f.body[:at] + member + f.body[at:]
		return nil
	}, nil
}

// inJSON is a text as a string of JSON, with what HTML would take for its own escaped or not.
func inJSON(text string, escaped bool) string {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(escaped)
	_ = encoder.Encode(text) // a string has always one
	return strings.TrimSuffix(out.String(), "\n")
}

// seal makes the body the request's.
func (f *form) seal() {
	f.req.Body, f.req.ContentLength = io.NopCloser(strings.NewReader(f.body)), int64(len(f.body))
	f.req.GetBody = nil // it is sent once
	if f.body == "" {
		f.req.Body = http.NoBody
	}
}

var errBody = errors.New("the body is no JSON with that object, or the object has that member already")

// within finds the object that a pointer leads to, in a JSON text without a repeated member on the way, and where its first member
// begins.
func within(text, object, member string) (at int, empty bool, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	path := strings.Split(object, "/")[1:]
	if object == "" {
		path = nil
	}
	at = -1
	if err := descend(d, path, member, func() { at = int(d.InputOffset()) }); err != nil || at < 0 {
		return 0, false, errBody
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return 0, false, errBody
	}
	return at, strings.HasPrefix(strings.TrimLeft(text[at:], " \t\r\n"), "}"), nil
}

// descend reads one value, which has to be an object, and calls found in the one that path leads to, which has no such member.
func descend(d *json.Decoder, path []string, member string, found func()) error {
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return errBody
	}
	if len(path) == 0 {
		found()
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		name, is := key.(string)
		switch {
		case err != nil, !is, seen[name], len(path) == 0 && name == member:
			return errBody
		case len(path) > 0 && name == path[0]:
			err = descend(d, path[1:], member, found)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return errBody
		}
		seen[name] = true
	}
	_, err := d.Token()
	return err
}
