-- +goose Up
CREATE TABLE spool (
    id       INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL,
    queued   INTEGER NOT NULL,
    record   BLOB    NOT NULL
) STRICT;
CREATE TABLE checkpoint (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    note BLOB NOT NULL
) STRICT;

-- +goose Down
DROP TABLE checkpoint;
DROP TABLE spool;
