-- +goose Up
-- Reads, many to a block. first, last: the index of its first and last entry; others may be between them. logged, logged_last: when
-- the log took them. Reads from before this stay in entries and bodies.
CREATE TABLE blocks (
    first       INTEGER PRIMARY KEY,
    last        INTEGER NOT NULL,
    logged      INTEGER NOT NULL,
    logged_last INTEGER NOT NULL,
    filter      BLOB    NOT NULL
) STRICT;
CREATE INDEX blocks_logged ON blocks (logged);

-- What is in a block, apart from its filter, so that filters are read without it.
CREATE TABLE packs (
    first INTEGER PRIMARY KEY,
    data  BLOB NOT NULL
) STRICT;

-- Which block a writer's sequences are in, by the first of them.
CREATE TABLE spans (
    writer   INTEGER NOT NULL REFERENCES writers (id),
    sequence INTEGER NOT NULL,
    first    INTEGER NOT NULL,
    PRIMARY KEY (writer, sequence)
) STRICT, WITHOUT ROWID;

-- The tree, 126 hashes in a row: what fits into a page. They are in the order of before.
CREATE TABLE tree (
    chunk  INTEGER PRIMARY KEY,
    hashes BLOB NOT NULL
) STRICT;
INSERT INTO tree SELECT idx / 126, unhex(group_concat(hex(hash), '' ORDER BY idx)) FROM hashes GROUP BY idx / 126;
DROP TABLE hashes;

-- The newest checkpoint alone is ever asked for.
DELETE FROM checkpoints WHERE size < (SELECT MAX(size) FROM checkpoints);

-- Reads are not in entries any more: of what is there, permits and what only looks are rare.
DROP INDEX entries_kind;
CREATE INDEX entries_kind ON entries (kind) WHERE kind != 42;
CREATE INDEX entries_looks ON entries (tier) WHERE tier = 1 AND kind != 42;

-- +goose Down
DROP INDEX entries_looks;
DROP INDEX entries_kind;
CREATE INDEX entries_kind ON entries (kind) WHERE kind NOT IN (42, 29);
CREATE TABLE hashes (
    idx  INTEGER PRIMARY KEY,
    hash BLOB NOT NULL
) STRICT;
DROP TABLE tree;
DROP TABLE spans;
DROP TABLE packs;
DROP TABLE blocks;
