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


-- A use of an approved operation that was redeemed, by a statement of ada's, and a halt.
INSERT INTO operations (operation_id, state, principal, session, channel, client_name, key_bound, tool_name, tool_source, tool_digest, tier,
    arguments, arguments_digest, agent_reason, audience, epoch, policy_digest, request_id, asked_at, expires_at, decided_at, decided_by)
VALUES ('OLDOPERATION', 3, 'agent', 's-1', 1, 'agent', 1, 'start_service', 'executor', x'01', 2, x'7b7d', x'02', 'because',
    'spiffe://durward.local/executor/local', 7, x'03', 'r-1', 1700000000000000000, 1700001800000000000, 1700000060000000000, 'ada');
INSERT INTO statements (digest, operation_id, kind, operator, used_at) VALUES (x'0a0b', 'OLDOPERATION', 'approve', 'ada', 1700000060000000000);
INSERT INTO spent (operation_id, use, grant_id, audience, redeemed_at)
VALUES ('OLDOPERATION', 1, 'g-1', 'spiffe://durward.local/executor/local', 1700000061000000000);
UPDATE control SET epoch = 7, halted = 1, reason = 'looks strange', changed_by = 'ada', changed_at = 1700000100000000000;
