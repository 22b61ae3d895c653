-- +goose Up

-- What references stand for. A value is encrypted under its session's key, which is in no database.
CREATE TABLE tokens (
    session TEXT NOT NULL,
    ref     TEXT NOT NULL,
    value   BLOB NOT NULL,
    made_at INTEGER NOT NULL,
    PRIMARY KEY (session, ref)
);

-- +goose Down
DROP TABLE tokens;
