-- +goose Up
-- One row for each spent key: the journal and the recorded outcome.
CREATE TABLE spent (
    key              TEXT PRIMARY KEY,
    operation        TEXT NOT NULL,
    use              INTEGER NOT NULL,
    tool             TEXT NOT NULL,
    arguments        BLOB NOT NULL,
    arguments_digest BLOB NOT NULL,
    request_id       TEXT NOT NULL,
    principal        TEXT NOT NULL,
    session          TEXT NOT NULL,
    channel          INTEGER NOT NULL,
    dangerous        INTEGER NOT NULL,
    statement        BLOB,
    spent_at         INTEGER NOT NULL,
    keep_until       INTEGER NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('spent', 'not acted', 'done', 'unknown')),
    ok               INTEGER NOT NULL DEFAULT 0,
    response         BLOB,
    fault            BLOB,
    outcome          BLOB,
    found            TEXT NOT NULL DEFAULT '',
    settled          INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX spent_open ON spent (state) WHERE settled = 0;

-- How often each human's statement was used, by the SHA-256 of its bytes.
CREATE TABLE statement_use (
    digest     BLOB PRIMARY KEY,
    used       INTEGER NOT NULL,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE control (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    epoch  INTEGER NOT NULL CHECK (epoch >= 1),
    halted INTEGER NOT NULL
);
INSERT INTO control (only, epoch, halted) VALUES (1, 1, 0);

-- A spent key with its outcome, a statement that was used twice, and a halt.
INSERT INTO spent (key, operation, use, tool, arguments, arguments_digest, request_id, principal, session, channel, dangerous, spent_at, keep_until,
    state, ok, settled)
VALUES ('OLDOPERATION/1', 'OLDOPERATION', 1, 'start_service', x'7b7d', x'02', 'r-1', 'agent', 's-1', 1, 0, 1700000061000000000,
    4000000000000000000, 'done', 1, 1);
INSERT INTO statement_use (digest, used, keep_until) VALUES (x'0000000000000000000000000000000000000000000000000000000000000a0b', 2, 4000000000000000000);
UPDATE control SET epoch = 7, halted = 1;
