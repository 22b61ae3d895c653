-- +goose Up
-- How many rows the spool had at its last change: others are not the recorder's doing.
CREATE TABLE kept (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    rows INTEGER NOT NULL
) STRICT;
INSERT INTO kept SELECT 1, count(*) FROM spool;

-- +goose Down
DROP TABLE kept;
