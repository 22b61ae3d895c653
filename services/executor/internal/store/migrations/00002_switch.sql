-- +goose Up
-- One row for each switch of modes: what it was to do, as JSON, and how it ended. ended_at is NULL while it goes on.
CREATE TABLE switch (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    operation      TEXT NOT NULL,
    mode           TEXT NOT NULL,
    from_mode      TEXT NOT NULL,
    plan_digest    TEXT NOT NULL,
    work           BLOB NOT NULL,
    began_at       INTEGER NOT NULL,
    ended_at       INTEGER,
    outcome        INTEGER NOT NULL DEFAULT 0,
    failed_service TEXT NOT NULL DEFAULT '',
    cause          TEXT NOT NULL DEFAULT '',
    not_running    TEXT NOT NULL DEFAULT '[]',
    log            TEXT NOT NULL DEFAULT '[]',
    recovered      INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX switch_open ON switch (id) WHERE ended_at IS NULL;

-- One row for each step, written before it is done.
CREATE TABLE switch_step (
    switch       INTEGER NOT NULL REFERENCES switch (id) ON DELETE CASCADE,
    number       INTEGER NOT NULL,
    action       INTEGER NOT NULL,
    service      TEXT NOT NULL,
    compensation INTEGER NOT NULL,
    ended        INTEGER NOT NULL DEFAULT 0,
    done         INTEGER NOT NULL DEFAULT 0,
    took_ms      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (switch, number)
) WITHOUT ROWID;
CREATE INDEX switch_step_took ON switch_step (service, action, switch) WHERE done = 1;

-- The mode that the host is in, and the boot of the host that its boot rule was followed in.
CREATE TABLE host_mode (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    mode TEXT NOT NULL,
    boot TEXT NOT NULL
);
INSERT INTO host_mode (only, mode, boot) VALUES (1, '', '');
