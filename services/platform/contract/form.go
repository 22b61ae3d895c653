package contract

import (
	"mime"
	"net/url"
	"strings"

	"google.golang.org/protobuf/proto"
)

// Spelled is how a value is written where a request has a reference in its place: as it is, and in the body of a form
// (application/x-www-form-urlencoded) escaped, so that it stays one value whatever it holds.
func Spelled(request proto.Message, pointer, value string) string {
	sent, is := request.(interface {
		GetHeaders() map[string]string
		GetBody() string
	})
	if !is || pointer != "/body" {
		return value
	}
	for name, given := range sent.GetHeaders() {
		if kind, _, _ := mime.ParseMediaType(given); strings.EqualFold(name, "Content-Type") && kind == "application/x-www-form-urlencoded" {
			return url.QueryEscape(value)
		}
	}
	return value
}
