-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE tokens (
    session text   NOT NULL,
    ref     text   NOT NULL,
    value   bytea  NOT NULL,
    made_at bigint NOT NULL,
    PRIMARY KEY (session, ref)
);

-- +goose Down
DROP TABLE tokens;
