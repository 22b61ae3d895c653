package logproof

import (
	"bytes"
	"fmt"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// Apart puts the bodies of a page's entries beside them, each once: those that several entries hold are the same message. It changes the
// entries, and not the bodies.
func Apart(page *auditv1.ExportLogResponse) {
	places := map[*auditv1.Body]uint32{}
	of := make([]uint32, len(page.GetEntries()))
	for i, e := range page.GetEntries() {
		body := e.GetRecord().GetBody()
		if body == nil {
			continue
		}
		if places[body] == 0 {
			page.Bodies = append(page.Bodies, body)
			places[body] = uint32(len(page.Bodies))
		}
		e.Record.Body, of[i] = nil, places[body]
	}
	if len(page.Bodies) > 0 {
		page.BodyOf = of
	}
}

// CheckPage is Check of entries that may come without what can be computed of them: the leaf and, unless the body is missing, the
// commitment. Both are put into them, and so are the bodies that stand apart; the leaves' hashes have to be there.
func CheckPage(page *auditv1.ExportLogResponse) []Checked {
	texts := make([][]byte, len(page.GetBodies())) // nil: it cannot be written, as each of its entries finds
	for i, body := range page.GetBodies() {
		texts[i], _ = appendCommitted(nil, body)
	}
	b := make([]byte, 0, textSize*len(page.GetEntries())) // what is put into the entries
	checked := make([]Checked, len(page.GetEntries()))
	for i, entry := range page.GetEntries() {
		c := &checked[i]
		c.entry = entry
		var text []byte
		if len(page.GetBodies()) > 0 {
			text, c.fault = join(entry, page, i, texts)
		}
		switch {
		case c.fault != nil:
		case entry == nil || len(entry.GetLeaf()) > 0:
			c.leaf, c.fault = verifyEntry(entry)
			continue
		case !BodyMissing(entry):
			b, c.leaf, c.fault = seal(b, entry, text)
		case entry.GetRecord().GetBody() != nil:
			c.fault = fmt.Errorf("%w: a body without its salt", ErrEntry)
		default:
			if entry.Leaf, c.fault = Leaf(entry); c.fault == nil {
				c.leaf = LeafHash(entry.Leaf)
			}
		}
		if c.fault == nil && !bytes.Equal(c.leaf[:], entry.GetLeafHash()) {
			c.fault = fmt.Errorf("%w: the hash is not of what it says", ErrEntry)
		}
	}
	return checked
}

// join gives an entry of a page its body, if that stands apart, and returns its text.
func join(entry *auditv1.Entry, page *auditv1.ExportLogResponse, i int, texts [][]byte) ([]byte, error) {
	if len(page.GetBodyOf()) != len(page.GetEntries()) {
		return nil, fmt.Errorf("%w: %d entries with the bodies of %d", ErrIncomplete, len(page.GetEntries()), len(page.GetBodyOf()))
	}
	switch n := page.GetBodyOf()[i]; {
	case n == 0:
		return nil, nil
	case int64(n) > int64(len(texts)) || entry.GetRecord() == nil || entry.GetRecord().GetBody() != nil:
		return nil, fmt.Errorf("%w: its body is not one that came with it", ErrEntry)
	default:
		entry.Record.Body = page.GetBodies()[n-1]
		return texts[n-1], nil
	}
}
