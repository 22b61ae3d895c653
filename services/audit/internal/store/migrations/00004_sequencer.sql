-- +goose Up
-- closed: why no process may write this log; it was moved to another database, or is still being moved to this one.
CREATE TABLE sequencer (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    closed TEXT NOT NULL
) STRICT;
INSERT INTO sequencer VALUES (1, '');

-- +goose Down
DROP TABLE sequencer;
