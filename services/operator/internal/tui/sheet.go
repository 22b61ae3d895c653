package tui

import (
	"context"

	tea "charm.land/bubbletea/v2"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/approval"
)

// look looks at an operation, unless that is on its way.
func (m *Model) look(op *vaultv1.Operation, number string) tea.Cmd {
	id := op.GetOperationId()
	if m.loading[id] {
		return nil
	}
	m.loading[id] = true
	return m.call(func(ctx context.Context) tea.Msg { return cardMsg{m.backend.Card(ctx, op, number)} })
}

// lookAgain looks at the chosen request once more where no plan of it could be had.
func (m *Model) lookAgain() tea.Cmd {
	card, ok := m.cards[m.selected]
	if !ok || card.Problem == "" {
		return nil
	}
	return m.look(card.Operation, card.Number)
}

// brought takes what a look at an operation brought. It is shown only as the answer to the last look, while the cursor is on
// that operation still and nothing else is read or typed: a document never appears under another request's name, or under a key that
// was meant for something else.
func (m *Model) brought(msg proposed) {
	there := m.selected == msg.operation && !m.own
	if msg.service != "" {
		there = m.own && m.onServices && m.service == msg.service
	}
	show := awaited(m.looking && msg.job == m.job, there && (m.mode == modeList || m.mode == modeDetail))
	m.ended(msg.job)
	if !show {
		return
	}
	if msg.err != nil {
		m.fail(msg.err)
		return
	}
	m.show(msg.operation, msg.proposal)
}

// show puts a document on the screen, with the card that its statement was made of: what the vault says of the request since then was not
// signed, nor what the executor said when it came.
func (m *Model) show(operation string, p *Proposal) {
	if m.pending(operation) != nil && !m.own {
		m.cards[operation] = p.Card
	}
	m.mode, m.proposal = modeSheet, p
	m.unfold(false)
}

// unfold shows the document on one screen, or whole. What does not fit on one screen is signed only once it was read whole.
func (m *Model) unfold(whole bool) {
	m.whole, m.scroll, m.seenEnd, m.shownAt = whole, 0, false, m.now()
	if !whole {
		m.laid = [2]int{m.width, m.room()}
		m.lines, m.seenEnd = approval.Brief(m.now(), m.width, m.room()-1, m.proposal.Document)
		return
	}
	lines, err := m.proposal.Document.Lines(m.now())
	if err != nil {
		m.leave()
		m.fail(err)
		return
	}
	m.lines = lines
	m.lookedAt()
}

// refit lays a document's one screen out anew where that has become another: a banner or a remark that takes lines of it pushes none of its
// terms off unsaid.
func (m *Model) refit() {
	if m.mode == modeSheet && !m.whole && m.laid != [2]int{m.width, m.room()} {
		m.unfold(false)
	}
}

// lookedAt notes that the end of a document was on the screen.
func (m *Model) lookedAt() {
	m.scroll = max(min(m.scroll, m.lastScroll()), 0)
	if m.mode == modeSheet && m.whole && m.scroll >= m.lastScroll() {
		m.seenEnd = true
	}
}
