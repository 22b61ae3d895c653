package logproof_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

// TestPage sends entries with their bodies apart: they come back as they were, and a page in which a body is another entry's, or nobody's,
// is found at that entry.
func TestPage(t *testing.T) {
	f := newFixture(t, records()...)
	send := func(alter func(*auditv1.ExportLogResponse)) []logproof.Checked {
		page := &auditv1.ExportLogResponse{}
		for _, e := range f.entries {
			e = proto.CloneOf(e)
			e.Leaf = nil
			if !logproof.BodyMissing(e) {
				e.BodyCommitment = nil
			}
			page.Entries = append(page.Entries, e)
		}
		logproof.Apart(page)
		alter(page)
		raw, err := proto.Marshal(page)
		came := &auditv1.ExportLogResponse{}
		if err != nil || proto.Unmarshal(raw, came) != nil {
			t.Fatal(err)
		}
		return logproof.CheckPage(came)
	}
	replayed := func(page []logproof.Checked) (n int, err error) {
		replay := &logproof.Replay{}
		for _, c := range page {
			if err := replay.AddChecked(c); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	bodies := 0
	whole := send(func(page *auditv1.ExportLogResponse) {
		bodies = len(page.GetBodies())
		for i, e := range page.GetEntries() {
			if e.GetRecord().GetBody() != nil {
				t.Errorf("entry %d holds its body", i)
			}
		}
	})
	if _, err := replayed(whole); err != nil || bodies < 2 {
		t.Fatalf("%d bodies, %v", bodies, err)
	}
	for i, c := range whole {
		if !proto.Equal(c.Entry(), f.entries[i]) {
			t.Errorf("entry %d came as %v", i, c.Entry())
		}
	}
	for name, alter := range map[string]func(*auditv1.ExportLogResponse){
		"another's body":   func(p *auditv1.ExportLogResponse) { p.BodyOf[1] = p.GetBodyOf()[0] },
		"no such body":     func(p *auditv1.ExportLogResponse) { p.BodyOf[1] = uint32(len(p.GetBodies())) + 1 },
		"far beyond":       func(p *auditv1.ExportLogResponse) { p.BodyOf[1] = 1<<32 - 1 },
		"none":             func(p *auditv1.ExportLogResponse) { p.BodyOf[1] = 0 },
		"altered":          func(p *auditv1.ExportLogResponse) { p.Bodies[p.GetBodyOf()[1]-1].Principal += "x" },
		"its own as well":  func(p *auditv1.ExportLogResponse) { p.Entries[1].Record.Body = p.GetBodies()[p.GetBodyOf()[1]-1] },
		"no salt":          func(p *auditv1.ExportLogResponse) { p.Entries[1].Salt = nil },
		"no record":        func(p *auditv1.ExportLogResponse) { p.Entries[1].Record = nil },
		"no place for one": func(p *auditv1.ExportLogResponse) { p.BodyOf = p.GetBodyOf()[:len(p.GetBodyOf())-1] },
		"one place more":   func(p *auditv1.ExportLogResponse) { p.BodyOf = append(p.GetBodyOf(), 1) },
		"the leaf's of all": func(p *auditv1.ExportLogResponse) {
			p.Entries[1].Leaf = f.entries[1].GetLeaf()
			p.BodyOf[1] = p.GetBodyOf()[0]
		},
	} {
		if n, err := replayed(send(alter)); err == nil || n > 1 {
			t.Errorf("%s: %d entries passed, %v", name, n, err)
		}
	}
}
