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
		code int
	}{
		{fault.New(callv1.Code_CODE_NOT_FOUND, "no service has that id", fault.WithField("service_id")), "See: durward services", ExitFailed},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "no mode has that id", fault.WithField("mode_id"), fault.WithSuggestions("night")), "Did you mean night?", ExitFailed},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such client", fault.WithField("client")), "See: durward client list", ExitUsage},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "no such server is in force", fault.WithField("server")), "See: durward server list", ExitFailed},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "the log has no such entry", fault.WithField("index")), "Find records: durward audit search", ExitFailed},
		{fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation"), "", ExitFailed},
	} {
		if got := new(App).translateFault(c.f); got.next != c.next || got.Code != c.code {
			t.Errorf("%s: %q and exit code %d, want %q and %d", c.f.Message, got.next, got.Code, c.next, c.code)
		}
	}
}
