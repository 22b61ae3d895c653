-- +goose Up

-- One asked-for mutation, from request to outcome. Times are Unix nanoseconds; 0 is "not yet".
CREATE TABLE operations (
    operation_id     TEXT PRIMARY KEY,
    state            INTEGER NOT NULL,
    principal        TEXT NOT NULL,
    session          TEXT NOT NULL,
    channel          INTEGER NOT NULL,
    client_name      TEXT NOT NULL,
    key_bound        INTEGER NOT NULL,
    tool_name        TEXT NOT NULL,
    tool_source      TEXT NOT NULL,
    tool_digest      BLOB NOT NULL,
    tier             INTEGER NOT NULL,
    arguments        BLOB NOT NULL,
    arguments_digest BLOB NOT NULL,
    agent_reason     TEXT NOT NULL,
    audience         TEXT NOT NULL,
    epoch            INTEGER NOT NULL,
    policy_digest    BLOB NOT NULL,
    request_id       TEXT NOT NULL,
    asked_at         INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL,
    decided_at       INTEGER NOT NULL DEFAULT 0,
    decided_by       TEXT NOT NULL DEFAULT '',
    decision_reason  TEXT NOT NULL DEFAULT '',
    subject_digest   BLOB NOT NULL DEFAULT x'',
    statement        BLOB NOT NULL DEFAULT x'',
    signature        BLOB NOT NULL DEFAULT x'',
    redeemed_at      INTEGER NOT NULL DEFAULT 0,
    settled_at       INTEGER NOT NULL DEFAULT 0,
    settled_ok       INTEGER NOT NULL DEFAULT 0,
    joined           INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX operations_by_state ON operations (state, asked_at);

-- A human's statement works once, whatever it says.
CREATE TABLE statements (
    digest       BLOB PRIMARY KEY,
    operation_id TEXT NOT NULL,
    kind         TEXT NOT NULL,
    operator     TEXT NOT NULL,
    used_at      INTEGER NOT NULL
);

-- A spend key, operation and use, is redeemed once. The primary key is the guard.
CREATE TABLE spent (
    operation_id TEXT NOT NULL,
    use          INTEGER NOT NULL,
    grant_id     TEXT NOT NULL,
    audience     TEXT NOT NULL,
    redeemed_at  INTEGER NOT NULL,
    PRIMARY KEY (operation_id, use)
);
CREATE INDEX spent_by_time ON spent (redeemed_at);

-- The epoch and whether everything is halted: one row.
CREATE TABLE control (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    epoch      INTEGER NOT NULL,
    halted     INTEGER NOT NULL,
    reason     TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    changed_at INTEGER NOT NULL
);
INSERT INTO control (id, epoch, halted, reason, changed_by, changed_at) VALUES (1, 1, 0, '', '', 0);

-- +goose Down
DROP TABLE control;
DROP TABLE spent;
DROP TABLE statements;
DROP TABLE operations;
