-- +goose Up

-- What services are given. No value is here but under the keyring's data key.
CREATE TABLE credentials (
    name       TEXT PRIMARY KEY,
    delivery   TEXT NOT NULL,
    variable   TEXT NOT NULL,
    sink       TEXT NOT NULL,
    -- Their ids, a space between.
    services   TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    seal       BLOB NOT NULL DEFAULT x''
);
CREATE TABLE credential_versions (
    name     TEXT NOT NULL,
    version  INTEGER NOT NULL,
    value    BLOB NOT NULL,
    added_by TEXT NOT NULL,
    added_at INTEGER NOT NULL,
    seal     BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (name, version)
);
-- The last value that a service got.
CREATE TABLE credential_uses (
    name         TEXT NOT NULL,
    service      TEXT NOT NULL,
    version      INTEGER NOT NULL,
    operation_id TEXT NOT NULL,
    used_at      INTEGER NOT NULL,
    seal         BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (name, service)
);
-- The data keys, encrypted; salt is of the passphrase that the key above them is made of, or empty.
CREATE TABLE keyring (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    wrapped    BLOB NOT NULL,
    salt       BLOB NOT NULL,
    changed_at INTEGER NOT NULL,
    seal       BLOB NOT NULL DEFAULT x''
);

-- +goose Down
DROP TABLE keyring;
DROP TABLE credential_uses;
DROP TABLE credential_versions;
DROP TABLE credentials;
