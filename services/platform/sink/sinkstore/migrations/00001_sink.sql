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
    settled          INTEGER NOT NULL DEFAULT 0,
    seal             BLOB NOT NULL DEFAULT x''
) WITHOUT ROWID;
CREATE INDEX spent_open ON spent (state) WHERE settled = 0;

-- How often each human's statement was used, by the SHA-256 of its bytes.
CREATE TABLE statement_use (
    digest     BLOB PRIMARY KEY,
    used       INTEGER NOT NULL,
    keep_until INTEGER NOT NULL,
    seal       BLOB NOT NULL DEFAULT x''
) WITHOUT ROWID;

-- The panic switch: why it is halted, by whom and since when.
CREATE TABLE control (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    epoch      INTEGER NOT NULL CHECK (epoch >= 1),
    halted     INTEGER NOT NULL,
    seal       BLOB NOT NULL DEFAULT x'',
    reason     TEXT NOT NULL DEFAULT '',
    changed_by TEXT NOT NULL DEFAULT '',
    changed_at INTEGER NOT NULL DEFAULT 0
);
INSERT INTO control (only, epoch, halted) VALUES (1, 1, 0);

-- Digests of whole tables: package database writes and checks them.
CREATE TABLE seals (
    name     TEXT PRIMARY KEY,
    rows     INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    sum      BLOB NOT NULL,
    seal     BLOB NOT NULL
) WITHOUT ROWID;
