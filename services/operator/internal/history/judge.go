package history

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// calls are the statements by which a call runs.
var calls = []statement.Kind{statement.KindApprove, statement.KindCommand, statement.KindScope, statement.KindDangerous, statement.KindConfirm}

// agreed is what a human may have agreed to in a record of each kind that carries a statement: anything else that somebody signed, and
// that lies in the log to be copied, is no evidence for it.
var agreed = map[auditv1.Kind][]statement.Kind{
	auditv1.Kind_KIND_APPROVED:           calls,
	auditv1.Kind_KIND_INTENT:             calls,
	auditv1.Kind_KIND_STANDING_GRANTED:   {statement.KindScope, statement.KindDangerous, statement.KindConfirm},
	auditv1.Kind_KIND_RESUMED:            {statement.KindResume},
	auditv1.Kind_KIND_CONFIG_ADOPTED:     {statement.KindConfig},
	auditv1.Kind_KIND_CREDENTIAL_CHANGED: {statement.KindCredential},
	auditv1.Kind_KIND_PRUNED:             {statement.KindPrune},
	auditv1.Kind_KIND_HELD:               {statement.KindHold},
	auditv1.Kind_KIND_RELEASED:           {statement.KindRelease},
	auditv1.Kind_KIND_RESTORED:           {statement.KindRestore},
}

// judge counts a statement among those that stand or those that do not. before is the root of the log before a record of KIND_RESTORED.
func (v *Verifier) judge(entry *auditv1.Entry, evidence *callv1.HumanStatement, before [sha256.Size]byte) {
	st, err := statement.VerifySignature(evidence, v.allowed, entry.GetLoggedAt().AsTime())
	if err == nil {
		err = cmp.Or(Fits(entry, st), goesOn(entry, st, before))
	}
	unknown := errors.Is(err, trust.ErrUnknownSigner)
	if err != nil && !unknown {
		v.report.BadStatements++
		v.report.Bad = found(v.report.Bad, entry, err.Error())
		return
	}
	// An approval stands in the vault's record and again in the sink's.
	digest := sha256.Sum256(evidence.GetStatement())
	unjudged, counted := v.seen[digest]
	if !counted {
		v.report.Statements++
	}
	if unknown && !unjudged {
		v.report.Unjudged++
	}
	v.seen[digest] = unjudged || unknown
}

// Fits returns why what a human agreed to is not what the record says. Where a restored log goes on takes the log: Verifier sees it.
func Fits(entry *auditv1.Entry, st *statement.Statement) error {
	id := entry.GetRecord().GetOperationId()
	switch {
	case !slices.Contains(agreed[entry.GetRecord().GetKind()], st.Kind):
		return fmt.Errorf("the statement is of another kind: %s", st.Kind)
	case id != "" && st.Operation != "" && st.Operation != id:
		return errors.New("the statement is about another operation")
	}
	return nil
}

// goesOn returns why a statement does not let the log go on from where it is.
func goesOn(entry *auditv1.Entry, st *statement.Statement, before [sha256.Size]byte) error {
	if st.Restore != nil && (st.Audience != entry.GetWriter() || st.Restore.Size != entry.GetIndex() || st.Restore.Root != hex.EncodeToString(before[:])) {
		return errors.New("the statement lets another log go on, or this one from another place")
	}
	return nil
}
