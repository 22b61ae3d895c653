-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE credentials (
    name       text   PRIMARY KEY,
    delivery   text   NOT NULL,
    variable   text   NOT NULL,
    sink       text   NOT NULL,
    services   text   NOT NULL,
    changed_at bigint NOT NULL,
    seal       bytea  NOT NULL
);

CREATE TABLE credential_versions (
    name     text   NOT NULL,
    version  bigint NOT NULL,
    value    bytea  NOT NULL,
    added_by text   NOT NULL,
    added_at bigint NOT NULL,
    seal     bytea  NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE credential_uses (
    name         text   NOT NULL,
    service      text   NOT NULL,
    version      bigint NOT NULL,
    operation_id text   NOT NULL,
    used_at      bigint NOT NULL,
    seal         bytea  NOT NULL,
    PRIMARY KEY (name, service)
);

CREATE TABLE keyring (
    id         bigint PRIMARY KEY CHECK (id = 1),
    wrapped    bytea  NOT NULL,
    salt       bytea  NOT NULL,
    changed_at bigint NOT NULL,
    seal       bytea  NOT NULL
);

-- +goose Down
DROP TABLE keyring;
DROP TABLE credential_uses;
DROP TABLE credential_versions;
DROP TABLE credentials;
