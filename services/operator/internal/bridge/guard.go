package bridge

import "fmt"

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// passed are the notifications that a server sends a client in the revisions that the gateway speaks.
var passed = map[string]bool{
	"notifications/cancelled": true, "notifications/message": true, "notifications/progress": true, "notifications/tasks/status": true,
	"notifications/prompts/list_changed": true, "notifications/resources/list_changed": true, "notifications/tools/list_changed": true,
	"notifications/resources/updated": true, "notifications/subscriptions/acknowledged": true,
}

// forClient returns what the client gets of a message that answers nothing: a notification that servers send. With a request of a
// server's (sampling, elicitation, roots) whoever speaks through the gateway would have the client act, and an answer that nobody
// asked for is none.
func forClient(m message) (line []byte, ok bool) {
	switch {
	case len(m.ID) > 0 || !passed[m.Method]:
		return nil, false
	case len(m.Params) == 0:
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`, m.Method), true
	default:
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":%s}`, m.Method, m.Params), true
	}
}
