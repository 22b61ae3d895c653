-- +goose Up
-- Row 1 is the newest checkpoint that was verified, row 2 the newest that a quorum of witnesses cosigned.
ALTER TABLE checkpoint RENAME TO checkpoint_before;
CREATE TABLE checkpoint (
    only INTEGER PRIMARY KEY CHECK (only IN (1, 2)),
    note BLOB NOT NULL
) STRICT;
INSERT INTO checkpoint SELECT only, note FROM checkpoint_before;
DROP TABLE checkpoint_before;

-- +goose Down
DELETE FROM checkpoint WHERE only = 2;
