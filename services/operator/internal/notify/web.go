package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"durward.internal/services/platform/dialer"
)

// maxAnswer bounds what a receiver's answer may hold; it is read and dropped.
const maxAnswer = 64 << 10

// web posts to a webhook or to ntfy.
type web struct {
	kind, token string
	url         *url.URL
	dialer      *dialer.Dialer
}

func (w *web) send(ctx context.Context, m message) error {
	body, header := w.body(m)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("the request to %s cannot be made", w.url.Host) // the error quotes the URL
	}
	req.Header = header
	req.Header.Set("User-Agent", "durward-notify")
	answer, err := w.dialer.Do(req)
	if err != nil {
		return err
	}
	if answer.Status < 200 || answer.Status > 299 {
		return fmt.Errorf("%s answers with status %d", w.url.Host, answer.Status)
	}
	return nil
}

// body is what a kind of receiver takes.
func (w *web) body(m message) ([]byte, http.Header) {
	header := http.Header{"Content-Type": {"application/json"}}
	// Within a block of code nothing is a mention or markup.
	text := m.title() + "\n```\n" + m.body() + "\n```"
	var document any
	switch w.kind {
	case KindNtfy:
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Title", m.title())
		if m.destructive() {
			header.Set("Priority", "high")
		}
		if w.token != "" {
			header.Set("Authorization", "Bearer "+w.token)
		}
		return []byte(m.body()), header
	case KindDiscord:
		document = map[string]any{"content": text, "allowed_mentions": map[string]any{"parse": []string{}}}
	default: // Slack and Mattermost take the same
		document = map[string]any{"text": text}
	}
	b, _ := json.Marshal(document) // strings: it cannot fail
	return b, header
}
