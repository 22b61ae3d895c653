package httpfront

import (
	"net/http"
	"testing"
)

func TestAccepts(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string][2]bool{
		"":                 {false, false},
		"text/html":        {false, false},
		"application/json": {true, false},
		"application/json;q=0, text/event-stream":     {false, true},
		"application/json, text/event-stream;q=0.000": {true, false},
		"*/*;q=0":                     {false, false},
		"*/*, text/event-stream; q=0": {true, false},
		"text/*;q=0, text/event-stream, application/json;q=0.001": {true, true},
		"*/*;q=0.1":                       {true, true},
		"*/*; q=0, application/*, text/*": {true, true},
		"Application/JSON; charset=utf-8 , text/event-stream;charset=utf-8": {true, true},
		"application/json,, text/event-stream":                              {true, true},
	} {
		if jsonOK, streamOK := accepts(http.Header{"Accept": {accept}}); [2]bool{jsonOK, streamOK} != want {
			t.Errorf("%q: %v, %v; want %v", accept, jsonOK, streamOK, want)
		}
	}
}
