-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE operations (
    operation_id     text    PRIMARY KEY,
    state            bigint  NOT NULL,
    principal        text    NOT NULL,
    session          text    NOT NULL,
    channel          bigint  NOT NULL,
    client_name      text    NOT NULL,
    key_bound        boolean NOT NULL,
    tool_name        text    NOT NULL,
    tool_source      text    NOT NULL,
    tool_digest      bytea   NOT NULL,
    tier             bigint  NOT NULL,
    arguments        bytea   NOT NULL,
    arguments_digest bytea   NOT NULL,
    agent_reason     text    NOT NULL,
    audience         text    NOT NULL,
    epoch            bigint  NOT NULL,
    policy_digest    bytea   NOT NULL,
    request_id       text    NOT NULL,
    asked_at         bigint  NOT NULL,
    expires_at       bigint  NOT NULL,
    decided_at       bigint  NOT NULL,
    decided_by       text    NOT NULL,
    decision_reason  text    NOT NULL,
    subject_digest   bytea   NOT NULL,
    statement        bytea   NOT NULL,
    signature        bytea   NOT NULL,
    redeemed_at      bigint  NOT NULL,
    settled_at       bigint  NOT NULL,
    settled_ok       boolean NOT NULL,
    joined           bigint  NOT NULL,
    authority        text    NOT NULL,
    dangerous        boolean NOT NULL,
    policy_tier      bigint  NOT NULL,
    rule             text    NOT NULL,
    agent            text    NOT NULL,
    seal             bytea   NOT NULL
);
CREATE INDEX operations_by_state ON operations (state, asked_at);

CREATE TABLE statements (
    digest       bytea  PRIMARY KEY,
    operation_id text   NOT NULL,
    kind         text   NOT NULL,
    operator     text   NOT NULL,
    used_at      bigint NOT NULL,
    seal         bytea  NOT NULL
);

CREATE TABLE spent (
    operation_id text   NOT NULL,
    use          bigint NOT NULL,
    grant_id     text   NOT NULL,
    audience     text   NOT NULL,
    redeemed_at  bigint NOT NULL,
    seal         bytea  NOT NULL,
    PRIMARY KEY (operation_id, use)
);
CREATE INDEX spent_by_time ON spent (redeemed_at);

CREATE TABLE standing (
    standing_id text   PRIMARY KEY,
    digest      bytea  NOT NULL,
    kind        text   NOT NULL,
    operator    text   NOT NULL,
    principal   text   NOT NULL,
    session     text   NOT NULL,
    granted_at  bigint NOT NULL,
    statement   bytea  NOT NULL,
    signature   bytea  NOT NULL,
    used        bigint NOT NULL,
    ended_at    bigint NOT NULL,
    ended_why   text   NOT NULL,
    seal        bytea  NOT NULL
);
CREATE INDEX standing_by_end ON standing (ended_at);

CREATE TABLE control (
    id         bigint  PRIMARY KEY CHECK (id = 1),
    epoch      bigint  NOT NULL,
    halted     boolean NOT NULL,
    reason     text    NOT NULL,
    changed_by text    NOT NULL,
    changed_at bigint  NOT NULL,
    seal       bytea   NOT NULL
);
INSERT INTO control VALUES (1, 1, false, '', '', 0, '');

CREATE TABLE usage (
    client  text   NOT NULL,
    tool    text   NOT NULL,
    day     text   NOT NULL,
    calls   bigint NOT NULL,
    last_at bigint NOT NULL,
    PRIMARY KEY (client, tool, day)
);

CREATE TABLE configuration (
    file       text   PRIMARY KEY,
    layer      text   NOT NULL,
    digest     text   NOT NULL,
    changed_at bigint NOT NULL
);

-- Keyed digests of each table, over these columns, and one of the key's own, by which a vault with another key knows that it has none.
CREATE TABLE seals (
    name     text   PRIMARY KEY,
    columns  text   NOT NULL,
    rows     bigint NOT NULL,
    revision bigint NOT NULL,
    sum      bytea  NOT NULL,
    seal     bytea  NOT NULL
);

-- The process that writes is the one whose epoch this is. closed: why no process may.
CREATE TABLE sequencer (
    id     bigint PRIMARY KEY CHECK (id = 1),
    epoch  bigint NOT NULL,
    closed text   NOT NULL
);
INSERT INTO sequencer VALUES (1, 0, '');

-- +goose Down
DROP TABLE sequencer;
DROP TABLE seals;
DROP TABLE configuration;
DROP TABLE usage;
DROP TABLE control;
DROP TABLE standing;
DROP TABLE spent;
DROP TABLE statements;
DROP TABLE operations;
