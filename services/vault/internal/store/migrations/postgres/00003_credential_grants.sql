-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE credential_grants (
    name       text   NOT NULL,
    sink       text   NOT NULL,
    services   text   NOT NULL,
    origins    text   NOT NULL,
    header     text   NOT NULL,
    scheme     text   NOT NULL,
    agents     text   NOT NULL,
    unattended bigint NOT NULL,
    ends_at    bigint NOT NULL,
    seal       bytea  NOT NULL,
    PRIMARY KEY (name, sink)
);
INSERT INTO credential_grants (name, sink, services, origins, header, scheme, agents, unattended, ends_at, seal)
    SELECT name, sink, services, '', '', '', '', 0, 0, '' FROM credentials WHERE services != '';
ALTER TABLE credentials DROP COLUMN sink;
ALTER TABLE credentials DROP COLUMN services;

-- +goose Down
ALTER TABLE credentials ADD COLUMN sink text NOT NULL DEFAULT '';
ALTER TABLE credentials ADD COLUMN services text NOT NULL DEFAULT '';
DROP TABLE credential_grants;
