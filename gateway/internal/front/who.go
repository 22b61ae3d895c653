package front

import (
	"net/http"
	"regexp"
	"unicode"
	"unicode/utf8"

	"durward.internal/gateway/internal/relay"
)

// A client may say which of its own agents asks (durward/agent, or a header, for programs that cannot write _meta), and a messaging
// client must say for whom (durward/sender). Both are the client's word, which the vault judges when a session opens: it knows which
// agents a client has, and which clients speak for others. They are part of what finds a session, so that nobody is served in the
// session of another agent or sender.

// headerAgent says what durward/agent says.
const headerAgent = "Durward-Agent"

// maxSender is how long a sender's user and room may be, in characters.
const maxSender = 128

const (
	sentenceAgent  = "The agent must be 1 to 64 letters, digits, dots, dashes or underscores, and begin with a letter or digit."
	sentenceSender = "The durward/sender member of _meta must have a user and a room, each of 1 to 128 characters without control characters."
)

var agentPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

// validSender reports whether a sender can be told from every other: what nobody sees is no part of a name.
func validSender(s relay.Sender) bool {
	for _, name := range []string{s.User, s.Room} {
		if name == "" || utf8.RuneCountInString(name) > maxSender {
			return false
		}
		for _, c := range name {
			if c == utf8.RuneError || unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || unicode.Is(unicode.Zl, c) || unicode.Is(unicode.Zp, c) {
				return false
			}
		}
	}
	return true
}

// agentOf is the agent that a message comes from: what it says, or what the headers around it say.
func agentOf(h http.Header, frame *Frame) (string, *frameError) {
	values := h.Values(headerAgent)
	switch {
	case len(values) == 0:
		return frame.Agent, nil
	case len(values) > 1 || !agentPattern.MatchString(values[0]):
		return "", invalidParams(sentenceAgent)
	case frame.Agent != "" && frame.Agent != values[0]:
		return "", invalidParams("The header " + headerAgent + " and the durward/agent member of _meta name two agents.")
	}
	return values[0], nil
}

// another says why a request that names an agent or a sender is not served in this session, or returns the empty string. Requests
// of a session for a sender name that sender each time, so that no program takes one person's session for another's.
func another(s *relay.Session, by relay.Caller) string {
	switch {
	case senderRequired() && by.Sender != s.Sender():
		return "This session is for another sender, or for none: a messaging client says durward/sender with each request, and has a session for each of them."
	case by.Agent != "" && by.Agent != s.Agent():
		return "This session is another agent's: start one with initialize for each agent."
	default:
		return ""
	}
}
