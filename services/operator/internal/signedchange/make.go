package signedchange

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/security"
)

// Names of files beside the security folder, in statements and records.
const (
	FileClients  = "clients.yaml"
	FileExecutor = "executor.yaml"
	FileEgress   = "egress.yaml"
	FileGateway  = "gateway.yaml"
)

// Making is a change that a person agreed to.
type Making struct {
	Config installdir.Config
	Plans  []*Plan
	// Signed are the statements, one a plan; nil: the change is made without.
	Signed []*callv1.HumanStatement
	// Optional: a signature that the vault does not take is no reason to stop.
	Optional bool
	Vault    Vault
	// Ready is called right before the first file is written. May be nil.
	Ready func() error
	// Record is told of each file that was written, with the digest of its statement, or "none".
	Record func(f File, statement string)
	// Warn is told, in a sentence, what did not go as it should; Explain puts an error into one.
	Warn    func(text string)
	Explain func(err error) string
}

// Result is what became of a change.
type Result struct {
	Files []File `json:"files"`
	// Announced: the vault has the signed statement.
	Announced bool `json:"announced"`
	// InForce: every file was seen to be in force. Of a file that another process than the vault reads nobody says so.
	InForce bool `json:"in_force"`
	// Unseen are files that their process reads by itself, within a second; what it refuses stands in its log and in audit's.
	Unseen []string `json:"unseen,omitempty"`
	// Adopted: the vault has every file that is for it.
	Adopted bool `json:"-"`

	watched []*Plan
}

// File is a file that was changed, by its digests.
type File struct {
	Name   string `json:"file"`
	Path   string `json:"path"`
	Before string `json:"digest_before"`
	After  string `json:"digest_after"`
}

// WriteError means that a file could not be written.
type WriteError struct{ text string }

func (e *WriteError) Error() string { return e.text }

// Make tells the vault, writes, and records: file by file, in order. Without signatures the vault is told nothing.
func Make(ctx context.Context, m Making) (*Result, error) {
	out := &Result{Announced: m.Vault.Policy != nil && m.Signed != nil}
	for i, p := range m.Plans {
		if out.Announced {
			err := m.Vault.announce(ctx, m.Signed[i])
			switch {
			case err == nil:
			case IsAway(err):
				m.Warn("The vault went away: it will find the change by itself and record it as found.")
				out.Announced = false
			case m.Optional:
				m.Warn("The vault does not take the signature; it is changed without one: " + m.Explain(err))
				out.Announced, m.Signed = false, nil
			default:
				return nil, fmt.Errorf("%s: %w", WhatStands(m.Plans, i), err)
			}
		}
		if i == 0 && m.Ready != nil {
			if err := m.Ready(); err != nil {
				return nil, err
			}
		}
		if err := p.Write(); err != nil {
			return nil, &WriteError{fmt.Sprintf("%s: %v", WhatStands(m.Plans, i), err)}
		}
		c := p.Change()
		f := File{Name: p.Name, Path: p.Path, Before: c.Before, After: c.After}
		out.Files = append(out.Files, f)
		// The statement itself stands in the record of the vault, which verified it; its digest ties the two together.
		by := "none"
		if m.Signed != nil {
			by = StatementDigest(m.Signed[i])
		}
		m.Record(f, by)
		if watchedByVault(m.Config, p) {
			out.watched = append(out.watched, p)
		} else {
			out.Unseen = append(out.Unseen, p.Name)
		}
	}
	return out, nil
}

// Await looks until the vault has taken up what it watches, for a while, and notes that. waiting is a file that it has not taken up.
// A file that it refuses is a *RefusedError.
func (r *Result) Await(ctx context.Context, v Vault) (waiting string, err error) {
	if len(r.watched) == 0 {
		return "", nil
	}
	r.Adopted, waiting, err = v.adopted(ctx, r.watched)
	r.InForce = r.Adopted && len(r.Unseen) == 0
	return waiting, err
}

// watchedByVault reports whether the vault says of a file what it has in force; every other file another process reads by itself.
func watchedByVault(cfg installdir.Config, p *Plan) bool {
	return p.Name == FileClients || inSecurityDir(cfg, p)
}

func inSecurityDir(cfg installdir.Config, p *Plan) bool {
	rel, err := filepath.Rel(cfg.SecurityDir, p.Path)
	return err == nil && filepath.IsLocal(rel)
}

// Try holds the files as they would be to what the vault would say of them, and returns what it would refuse. What was broken
// before is no reason to refuse.
func Try(cfg installdir.Config, plans []*Plan) []string {
	overlay := map[string][]byte{}
	for _, p := range plans {
		if inSecurityDir(cfg, p) {
			overlay[p.Name] = p.After
		}
	}
	if len(overlay) == 0 {
		return nil
	}
	_, before := security.Look(cfg.Security(), nil)
	_, after := security.Look(cfg.Security(), overlay)
	known := map[string]bool{}
	for _, f := range before {
		known[f.Name+"\x00"+f.Problem] = true
	}
	var problems []string
	for _, f := range after {
		if _, ours := overlay[f.Name]; f.Problem != "" && (ours || !known[f.Name+"\x00"+f.Problem]) {
			problems = append(problems, f.String())
		}
	}
	return problems
}

// maxSignable is the longest statement that processes take, and room for what is not known before it is signed.
const maxSignable = 65536 - 256

// Signable reports which change is too long for a statement, before anything is shown or asked.
func Signable(cfg installdir.Config, plans []*Plan) error {
	for _, p := range plans {
		raw, err := Statement(cfg.Operator, cfg.Vault.Identity, 1, time.Time{}, p.Change()).Marshal()
		if err != nil {
			return err
		}
		if len(raw) > maxSignable {
			return fmt.Errorf("the difference of %s is too long to be signed: %d KB, and a statement is of at most %d", clean.Visible(p.Name), len(raw)>>10, maxSignable>>10)
		}
	}
	return nil
}

// WhatStands says how far a change of several files came that failed at one of them.
func WhatStands(plans []*Plan, failed int) string {
	if failed == 0 {
		return "nothing was written"
	}
	var names []string
	for _, p := range plans[:failed] {
		names = append(names, clean.Visible(p.Name))
	}
	return strings.Join(names, ", ") + " is changed already, and " + clean.Visible(plans[failed].Name) + " is not"
}

// StatementDigest is the digest of a signed statement, as records have it.
func StatementDigest(h *callv1.HumanStatement) string {
	return canonical.DigestText(h.GetStatement())
}

// Effective are the plans that change something.
func Effective(plans []*Plan) []*Plan {
	return slices.DeleteFunc(slices.Clone(plans), (*Plan).Empty)
}

// WhereToEdit is what a human edits by hand, file and line.
func WhereToEdit(plans []*Plan) string {
	var places []string
	for _, p := range plans {
		if p.Before == nil {
			places = append(places, clean.Visible(p.Path)+" (a new file)")
			continue
		}
		places = append(places, fmt.Sprintf("%s, line %d", clean.Visible(p.Path), p.Line()))
	}
	return "Edit by hand: " + strings.Join(places, "; and ")
}
