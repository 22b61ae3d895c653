package contract

import (
	"net/url"
	"testing"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

// TestSpelled: a value in a form's body adds no field to it and comes back as it is; elsewhere it is not changed.
func TestSpelled(t *testing.T) {
	t.Parallel()
	const value = "&admin=1%26+ ü\n"
	body := func(value string) *string { text := "mail=" + value + "&list=news"; return &text }
	for kind, escaped := range map[string]bool{
		"application/x-www-form-urlencoded": true, "Application/X-WWW-Form-Urlencoded; charset=UTF-8": true, "application/json": false, "text/plain": false, "": false,
		"multipart/form-data; boundary=application/x-www-form-urlencoded": false,
	} {
		for _, name := range []string{"content-type", "Content-Type"} {
			request := &egressv1.HttpRequestRequest{Headers: map[string]string{"accept": "application/x-www-form-urlencoded", name: kind}, Body: body("REFERENCE")}
			got := Spelled(request, "/body", value)
			if (got != value) != escaped {
				t.Errorf("%s %q: %q", name, kind, got)
			}
			form, err := url.ParseQuery(*body(got))
			if whole := err == nil && len(form) == 2 && form.Get("mail") == value && form.Get("list") == "news"; whole != escaped {
				t.Errorf("%q is read as %v, %v", kind, form, err)
			}
			if got := Spelled(request, "/url", value); got != value {
				t.Errorf("elsewhere: %q", got)
			}
		}
	}
	if got := Spelled(&executorv1.StartServiceRequest{}, "/body", value); got != value {
		t.Errorf("another tool: %q", got)
	}
}
