-- +goose Up
CREATE TABLE writers (
    id            INTEGER PRIMARY KEY,
    identity      TEXT    NOT NULL UNIQUE,
    role          TEXT    NOT NULL,
    last_sequence INTEGER NOT NULL
) STRICT;

-- Headers, which stay for ever. leaf is the hash of the leaf that the tree commits to; the leaf is made of the other columns.
CREATE TABLE entries (
    idx             INTEGER PRIMARY KEY,
    writer          INTEGER NOT NULL REFERENCES writers (id),
    sequence        INTEGER NOT NULL,
    kind            INTEGER NOT NULL,
    tier            INTEGER NOT NULL,
    status          INTEGER NOT NULL,
    time            INTEGER NOT NULL, -- nanoseconds since 1970, the writer's clock
    logged_at       INTEGER NOT NULL, -- nanoseconds since 1970, the log's clock, never going back
    request_id      TEXT    NOT NULL,
    operation_id    TEXT    NOT NULL,
    tool            TEXT    NOT NULL,
    body_commitment BLOB    NOT NULL,
    leaf            BLOB    NOT NULL,
    UNIQUE (writer, sequence)
) STRICT;
CREATE INDEX entries_logged_at ON entries (logged_at);
CREATE INDEX entries_request_id ON entries (request_id) WHERE request_id != '';
CREATE INDEX entries_operation_id ON entries (operation_id) WHERE operation_id != '';
CREATE INDEX entries_tool ON entries (tool) WHERE tool != '';

-- Bodies, which retention may drop.
CREATE TABLE bodies (
    idx       INTEGER PRIMARY KEY,
    salt      BLOB NOT NULL,
    session   TEXT NOT NULL,
    principal TEXT NOT NULL,
    body      BLOB NOT NULL
) STRICT;
CREATE INDEX bodies_session ON bodies (session) WHERE session != '';
CREATE INDEX bodies_principal ON bodies (principal) WHERE principal != '';

-- The tree, in the dense order of golang.org/x/mod/sumdb/tlog.StoredHashIndex.
CREATE TABLE hashes (
    idx  INTEGER PRIMARY KEY,
    hash BLOB NOT NULL
) STRICT;

CREATE TABLE checkpoints (
    size INTEGER PRIMARY KEY,
    note BLOB NOT NULL
) STRICT;


-- One record of the vault's.
INSERT INTO writers (id, identity, role, last_sequence) VALUES (1, 'spiffe://durward.local/vault/main', 'vault', 1);
INSERT INTO entries (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf)
VALUES (0, 1, 1, 1, 2, 1, 1700000000000000000, 1700000000000000001, 'r-1', 'OLDOPERATION', 'start_service', zeroblob(32), zeroblob(32));
INSERT INTO bodies (idx, salt, session, principal, body) VALUES (0, zeroblob(32), 's-1', 'agent', x'');
INSERT INTO hashes (idx, hash) VALUES (0, zeroblob(32));
