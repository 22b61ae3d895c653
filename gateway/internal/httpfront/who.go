package httpfront

import (
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

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
	sentenceSender = "The durward/sender member of _meta must have a user and a room, each of 1 to 128 characters without control characters," +
		" in Unicode's composed form (NFC), with single plain spaces inside alone."
)

var agentPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

// validSender reports whether a sender can be told from every other: what nobody sees is no part of a name, and one that is written
// in two ways is taken in one. It is refused rather than rewritten, since a key-bound client signs for the name as it stands.
func validSender(s relay.Sender) bool {
	for _, name := range []string{s.User, s.Room} {
		if name == "" || utf8.RuneCountInString(name) > maxSender || !norm.NFC.IsNormalString(name) ||
			strings.Contains(name, "  ") || strings.Trim(name, " ") != name {
			return false
		}
		for _, c := range name {
			if c == utf8.RuneError || unicode.IsControl(c) || c != ' ' && unicode.IsSpace(c) || unicode.In(c, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point) {
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
// of a session for a sender name that sender each time, so that no program takes one person's session for another's. One that names
// no agent is served in any agent's session of the same token: it is the client's own, and the session's agent is what counts.
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
