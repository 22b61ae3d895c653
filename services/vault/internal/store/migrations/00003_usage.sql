-- +goose Up

-- How often a client called a tool on a day, for the budgets that a human set. Only tools that have one are counted.
CREATE TABLE usage (
    client  TEXT NOT NULL,
    tool    TEXT NOT NULL,
    -- YYYY-MM-DD, by the host's own calendar.
    day     TEXT NOT NULL,
    calls   INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    PRIMARY KEY (client, tool, day)
);

-- The files of the security configuration as they were in force last, so that what changed while nobody looked is seen.
CREATE TABLE configuration (
    file       TEXT PRIMARY KEY,
    layer      TEXT NOT NULL,
    digest     TEXT NOT NULL,
    changed_at INTEGER NOT NULL
);

-- +goose Down

DROP TABLE configuration;
DROP TABLE usage;
