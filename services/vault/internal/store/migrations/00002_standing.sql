-- +goose Up

-- In whose name an operation runs: '' (nobody decided yet), 'approve', 'command', 'scope', 'dangerous' or 'unattended'.
ALTER TABLE operations ADD COLUMN authority TEXT NOT NULL DEFAULT '';
ALTER TABLE operations ADD COLUMN dangerous INTEGER NOT NULL DEFAULT 0;
-- The tier as policy saw it where that is above the contract's, and the rule that decided.
ALTER TABLE operations ADD COLUMN policy_tier INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operations ADD COLUMN rule TEXT NOT NULL DEFAULT '';

-- What a human let a session do without being asked each time: evidence. Nothing is read back into force.
CREATE TABLE standing (
    standing_id TEXT PRIMARY KEY,
    digest      BLOB NOT NULL,
    kind        TEXT NOT NULL,
    operator    TEXT NOT NULL,
    principal   TEXT NOT NULL,
    session     TEXT NOT NULL,
    granted_at  INTEGER NOT NULL,
    statement   BLOB NOT NULL,
    signature   BLOB NOT NULL,
    used        INTEGER NOT NULL DEFAULT 0,
    ended_at    INTEGER NOT NULL DEFAULT 0,
    ended_why   TEXT NOT NULL DEFAULT ''
);
CREATE INDEX standing_by_end ON standing (ended_at);

-- +goose Down
DROP TABLE standing;
ALTER TABLE operations DROP COLUMN rule;
ALTER TABLE operations DROP COLUMN policy_tier;
ALTER TABLE operations DROP COLUMN dangerous;
ALTER TABLE operations DROP COLUMN authority;
