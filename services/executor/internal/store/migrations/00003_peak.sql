-- +goose Up
-- The most that was measured of a service's GPU memory, for each way in which it was run: the digest of its entry and of what that
-- names, and the models of its GPUs in its own order. mib is a JSON list in that order. run_since is when the run began in which it
-- was seen last, in nanoseconds.
CREATE TABLE peak (
    service   TEXT NOT NULL,
    digest    TEXT NOT NULL,
    gpus      TEXT NOT NULL,
    state     TEXT NOT NULL CHECK (state IN ('awake', 'asleep', 'loading')),
    mib       TEXT NOT NULL,
    readings  INTEGER NOT NULL,
    run_since INTEGER NOT NULL,
    first_at  INTEGER NOT NULL,
    last_at   INTEGER NOT NULL,
    PRIMARY KEY (service, digest, gpus, state)
) WITHOUT ROWID;
