-- +goose Up

-- To whom a credential is granted: one row for each sink. Lists have a space between their items. ends_at is 0 where it lasts until it
-- is revoked.
CREATE TABLE credential_grants (
    name       TEXT NOT NULL,
    sink       TEXT NOT NULL,
    services   TEXT NOT NULL,
    origins    TEXT NOT NULL,
    header     TEXT NOT NULL,
    scheme     TEXT NOT NULL,
    agents     TEXT NOT NULL,
    unattended INTEGER NOT NULL,
    ends_at    INTEGER NOT NULL,
    seal       BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (name, sink)
);
INSERT INTO credential_grants (name, sink, services, origins, header, scheme, agents, unattended, ends_at)
    SELECT name, sink, services, '', '', '', '', 0, 0 FROM credentials WHERE services != '';
ALTER TABLE credentials DROP COLUMN sink;
ALTER TABLE credentials DROP COLUMN services;

-- +goose Down
ALTER TABLE credentials ADD COLUMN sink TEXT NOT NULL DEFAULT '';
ALTER TABLE credentials ADD COLUMN services TEXT NOT NULL DEFAULT '';
DROP TABLE credential_grants;
