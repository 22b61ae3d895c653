package notify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/opnumber"
)

// Notice is one request that waits, as it is told.
type Notice struct {
	// Number is what the operator types, Client who asks, and Tool for what.
	Number string `json:"number"`
	Client string `json:"client"`
	Tool   string `json:"tool"`
	Tier   string `json:"tier"`
	// AskedAt and ExpiresAt are RFC 3339.
	AskedAt   time.Time `json:"asked_at"`
	ExpiresAt time.Time `json:"expires_at"`
	// Approve is the command that shows the request and asks whether it may be.
	Approve string `json:"approve"`

	full        string // the number at its full length, which does not change
	destructive bool
}

// notices makes what is told of what the vault says. Of names it keeps what no receiver takes for markup, a mention or a command.
func (c *Config) notices(waiting []*vaultv1.Waiting) []Notice {
	full := make([]string, len(waiting))
	for i, w := range waiting {
		full[i] = w.GetNumber()
	}
	short := opnumber.Shorten(full)
	out := make([]Notice, len(waiting))
	for i, w := range waiting {
		number := clean.Plain(short[w.GetNumber()])
		out[i] = Notice{
			Number: number, Client: word(w.GetPrincipal()), Tool: word(w.GetTool()), Tier: contract.TierName(w.GetTier()),
			AskedAt: w.GetAskedAt().AsTime(), ExpiresAt: w.GetExpiresAt().AsTime(), Approve: c.Command + " approve " + number,
			full: w.GetNumber(), destructive: w.GetTier() >= optionsv1.Tier_TIER_DESTRUCTIVE,
		}
	}
	return out
}

// made is a notice of a request that nobody made.
func (c *Config) made(now time.Time) Notice {
	return Notice{
		Number: "TEST", Client: "nobody", Tool: "start_service", Tier: contract.TierName(optionsv1.Tier_TIER_WRITE),
		AskedAt: now.UTC().Truncate(time.Second), ExpiresAt: now.UTC().Truncate(time.Second), Approve: c.Command + " approve TEST",
	}
}

// word is a name on one line, at most 64 characters long.
func word(name string) string {
	return cmp.Or(clean.Plain(strings.ReplaceAll(clean.Line(name, 64), " ", "_")), "?")
}

// most is how many requests one message lists, and longest how many bytes that list has: Discord takes 2,000 characters
// (https://discord.com/developers/docs/resources/webhook#execute-webhook), and refuses what has more.
const most, longest = 10, 1800

// message is what one destination is told at once.
type message struct {
	Waiting []Notice `json:"waiting"`
	// More is how many wait beside those.
	More int `json:"more"`
	// Test says that nothing waits: it was sent to try the destination.
	Test bool `json:"test"`
}

// newMessage lists what takes something away first: of many that wait, the end of the list is left out.
func newMessage(due []Notice, test bool) message {
	shown := slices.SortedStableFunc(slices.Values(due), func(a, b Notice) int {
		switch {
		case a.destructive == b.destructive:
			return 0
		case a.destructive:
			return -1
		default:
			return 1
		}
	})
	shown = shown[:min(len(shown), most)]
	return message{Waiting: shown, More: len(due) - len(shown), Test: test}
}

// destructive reports whether any of what waits takes something away.
func (m message) destructive() bool {
	return slices.ContainsFunc(m.Waiting, func(n Notice) bool { return n.destructive })
}

// title is one line, body one for each request.
func (m message) title() string {
	switch n := len(m.Waiting) + m.More; {
	case m.Test:
		return "Durward: a test, nothing waits"
	case n == 1:
		return "Durward: a request waits for you"
	default:
		return fmt.Sprintf("Durward: %d requests wait for you", n)
	}
}

func (m message) body() string {
	var b strings.Builder
	more := m.More
	for i, n := range m.Waiting {
		line := fmt.Sprintf("%s: %s (%s) by %s. %s\n", n.Number, n.Tool, n.Tier, n.Client, n.Approve)
		if b.Len()+len(line) > longest {
			more += len(m.Waiting) - i
			break
		}
		b.WriteString(line)
	}
	if more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (m message) json() []byte {
	b, _ := json.Marshal(m) // strings, times and numbers: it cannot fail
	return append(b, '\n')
}

// board holds what waits now. It is safe for concurrent use.
type board struct {
	mu      sync.Mutex
	waiting []Notice
	changed clock.Signal
}

func (b *board) set(waiting []Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = waiting
	b.changed.Raise()
}

// now returns what waits, and what is closed when that changes.
func (b *board) now() ([]Notice, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting, b.changed.Wait()
}
