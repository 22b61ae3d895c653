-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE blocks (
    first       bigint PRIMARY KEY,
    last        bigint NOT NULL,
    logged      bigint NOT NULL,
    logged_last bigint NOT NULL,
    filter      bytea  NOT NULL
);
CREATE INDEX blocks_logged ON blocks (logged);

CREATE TABLE packs (
    first bigint PRIMARY KEY,
    data  bytea NOT NULL
);
-- It is compressed already.
ALTER TABLE packs ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE blocks ALTER COLUMN filter SET STORAGE EXTERNAL;

CREATE TABLE spans (
    writer   bigint NOT NULL REFERENCES writers (id),
    sequence bigint NOT NULL,
    first    bigint NOT NULL,
    PRIMARY KEY (writer, sequence)
);

CREATE TABLE tree (
    chunk  bigint PRIMARY KEY,
    hashes bytea NOT NULL
);
ALTER TABLE tree ALTER COLUMN hashes SET STORAGE EXTERNAL;
INSERT INTO tree SELECT idx / 126, string_agg(hash, ''::bytea ORDER BY idx) FROM hashes GROUP BY idx / 126;
DROP TABLE hashes;

DELETE FROM checkpoints WHERE size < (SELECT MAX(size) FROM checkpoints);

DROP INDEX entries_kind;
CREATE INDEX entries_kind ON entries (kind, idx) WHERE kind != 42;
CREATE INDEX entries_looks ON entries (tier, idx) WHERE tier = 1 AND kind != 42;

-- In the order of the log, so that none is sorted.
DROP INDEX bodies_session;
CREATE INDEX bodies_session ON bodies (session, idx) WHERE session != '';
DROP INDEX bodies_principal;
CREATE INDEX bodies_principal ON bodies (principal, idx) WHERE principal != '';

-- +goose Down
DROP INDEX bodies_principal;
CREATE INDEX bodies_principal ON bodies (principal) WHERE principal != '';
DROP INDEX bodies_session;
CREATE INDEX bodies_session ON bodies (session) WHERE session != '';
DROP INDEX entries_looks;
DROP INDEX entries_kind;
CREATE INDEX entries_kind ON entries (kind, idx) WHERE kind NOT IN (42, 29);
CREATE TABLE hashes (
    idx  bigint PRIMARY KEY,
    hash bytea NOT NULL
);
DROP TABLE tree;
DROP TABLE spans;
DROP TABLE packs;
DROP TABLE blocks;
