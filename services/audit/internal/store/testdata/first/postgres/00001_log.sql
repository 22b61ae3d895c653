-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE writers (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    identity      text   NOT NULL UNIQUE,
    role          text   NOT NULL,
    last_sequence bigint NOT NULL
);

CREATE TABLE entries (
    idx             bigint  PRIMARY KEY,
    writer          bigint  NOT NULL REFERENCES writers (id),
    sequence        bigint  NOT NULL,
    kind            integer NOT NULL,
    tier            integer NOT NULL,
    status          integer NOT NULL,
    time            bigint  NOT NULL,
    logged_at       bigint  NOT NULL,
    request_id      text    NOT NULL,
    operation_id    text    NOT NULL,
    tool            text    NOT NULL,
    body_commitment bytea   NOT NULL,
    leaf            bytea   NOT NULL,
    UNIQUE (writer, sequence)
);
CREATE INDEX entries_logged_at ON entries (logged_at);
CREATE INDEX entries_request_id ON entries (request_id) WHERE request_id != '';
CREATE INDEX entries_operation_id ON entries (operation_id) WHERE operation_id != '';
CREATE INDEX entries_tool ON entries (tool) WHERE tool != '';
CREATE INDEX entries_last ON entries (writer, kind, idx) WHERE kind IN (3, 24, 28, 30, 31, 40, 41);

CREATE TABLE bodies (
    idx       bigint PRIMARY KEY,
    salt      bytea NOT NULL,
    session   text  NOT NULL,
    principal text  NOT NULL,
    body      bytea NOT NULL
);
CREATE INDEX bodies_session ON bodies (session) WHERE session != '';
CREATE INDEX bodies_principal ON bodies (principal) WHERE principal != '';

CREATE TABLE hashes (
    idx  bigint PRIMARY KEY,
    hash bytea NOT NULL
);

CREATE TABLE checkpoints (
    size bigint PRIMARY KEY,
    note bytea NOT NULL
);

-- The process that writes is the one whose epoch this is. closed: why no process may.
CREATE TABLE sequencer (
    id     integer PRIMARY KEY CHECK (id = 1),
    epoch  bigint NOT NULL,
    closed text   NOT NULL
);
INSERT INTO sequencer VALUES (1, 0, '');

-- One record of the vault's.
INSERT INTO writers (identity, role, last_sequence) VALUES ('spiffe://durward.local/vault/main', 'vault', 1);
INSERT INTO entries (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf)
VALUES (0, 1, 1, 1, 2, 1, 1700000000000000000, 1700000000000000001, 'r-1', 'OLDOPERATION', 'start_service', decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex'));
INSERT INTO bodies (idx, salt, session, principal, body) VALUES (0, decode(repeat('00', 32), 'hex'), 's-1', 'agent', '');
INSERT INTO hashes (idx, hash) VALUES (0, decode(repeat('00', 32), 'hex'));
