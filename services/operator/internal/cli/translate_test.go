package cli

import (
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// What is not there comes with the command that tells more.
func TestNext(t *testing.T) {
	for _, c := range []struct {
		f    *fault.Error
		next string
	}{
		{fault.New(callv1.Code_CODE_NOT_FOUND, "no service has that id", fault.WithField("service_id")), "See: durward services"},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "no mode has that id", fault.WithField("mode_id"), fault.WithSuggestions("night")), "Did you mean night?"},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such client", fault.WithField("client")), "See: durward client list"},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "no such server is in force", fault.WithField("server")), "See: durward server list"},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "the log has no such entry", fault.WithField("index")), "Find records: durward audit search"},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation"), ""},
	} {
		if got := new(App).translateFault(c.f); got.next != c.next {
			t.Errorf("%s: %q, want %q", c.f.Message, got.next, c.next)
		}
	}
}
