package store

import (
	"context"
	"strings"

	"durward.internal/services/platform/recorder"
)

// engine is a database. What it is told is the same for each: tables, and conditions with question marks for parameters.
type engine interface {
	reader
	// transact runs f in one transaction, which is durable when transact returns nil, and otherwise left nothing. f writes through
	// its argument alone, and does not keep it. ErrFollows: this process does not lead any more, and nothing was written.
	transact(ctx context.Context, f func(writer) error) error

	// damage, accept, state and digest are as database.Seals has them.
	damage() []string
	accept(ctx context.Context) error
	state(ctx context.Context) (recorder.State, error)
	digest(purpose string, values ...string) string

	// hold keeps the lead until it is lost, or ctx ends: then nil. ErrFollows: what this process knows may be old.
	hold(ctx context.Context) error
	// lasts reports whether no other process can lead now.
	lasts() bool
	// probe returns an error while the database cannot be written.
	probe(ctx context.Context) error
	close() error
}

// reader reads rows.
type reader interface {
	// find calls row for each row that rest finds ("WHERE …" and what comes after it), until row returns false or an error. row must
	// not use the store.
	find(ctx context.Context, t *table, rest string, args []any, row func(scan scanner) (more bool, err error)) error
}

// scanner reads a row's columns, in the table's order, and reports whether the row bears its seal; in a table without seals each does.
type scanner func(into ...any) (sound bool, err error)

// writer is a transaction.
type writer interface {
	reader
	// insert adds a row, with a value for each column, and reports whether it did: not where its key is there already.
	insert(ctx context.Context, t *table, values ...any) (bool, error)
	// update sets columns of the rows for which the condition holds, and returns how many those are.
	update(ctx context.Context, t *table, set []column, where string, args ...any) (int64, error)
	// remove removes the rows for which the condition holds.
	remove(ctx context.Context, t *table, where string, args ...any) error
}

// column is a column with the value to set.
type column struct {
	name  string
	value any
}

// table is what an engine must know of a table.
type table struct {
	name string
	// keys are the columns of the primary key, columns all but the seal, in the order of the seal.
	keys, columns []string
	// sealed: it carries authority, and its rows bear seals.
	sealed bool
}

// marks is "?, ?, ?".
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

func words(s string) []string { return strings.Fields(s) }

// The tables. A column that is added comes last.
var (
	operations = &table{"operations", words("operation_id"), words(`operation_id state principal session channel client_name key_bound tool_name
		tool_source tool_digest tier arguments arguments_digest agent_reason audience epoch policy_digest request_id asked_at expires_at
		decided_at decided_by decision_reason subject_digest statement signature redeemed_at settled_at settled_ok joined authority
		dangerous policy_tier rule agent`), true}
	statements = &table{"statements", words("digest"), words("digest operation_id kind operator used_at"), true}
	spent      = &table{"spent", words("operation_id use"), words("operation_id use grant_id audience redeemed_at"), true}
	standing   = &table{"standing", words("standing_id"), words(`standing_id digest kind operator principal session granted_at statement
		signature used ended_at ended_why`), true}
	control       = &table{"control", words("id"), words("id epoch halted reason changed_by changed_at"), true}
	usage         = &table{"usage", words("client tool day"), words("client tool day calls last_at"), false}
	configuration = &table{"configuration", words("file"), words("file layer digest changed_at"), false}

	credentials        = &table{"credentials", words("name"), words("name delivery variable changed_at"), true}
	credentialGrants   = &table{"credential_grants", words("name sink"), words("name sink services origins header scheme agents unattended ends_at"), true}
	credentialVersions = &table{"credential_versions", words("name version"), words("name version value added_by added_at"), true}
	credentialUses     = &table{"credential_uses", words("name service"), words("name service version operation_id used_at"), true}
	keyring            = &table{"keyring", words("id"), words("id wrapped salt changed_at"), true}

	// tokens bear no seals: a value's encryption is bound to its reference, and its key is none of the database's.
	tokens = &table{"tokens", words("session ref"), words("session ref value made_at"), false}

	tables = []*table{
		operations, statements, spent, standing, control, usage, configuration, credentials, credentialGrants, credentialVersions, credentialUses, keyring, tokens,
	}
)
