-- +goose Up

-- Keyed digests of the rows, and of each table: package database writes and checks them.
ALTER TABLE operations ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE statements ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE spent ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE standing ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE control ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
CREATE TABLE seals (
    name     TEXT PRIMARY KEY,
    rows     INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    sum      BLOB NOT NULL,
    seal     BLOB NOT NULL
) WITHOUT ROWID;

-- +goose Down
DROP TABLE seals;
ALTER TABLE control DROP COLUMN seal;
ALTER TABLE standing DROP COLUMN seal;
ALTER TABLE spent DROP COLUMN seal;
ALTER TABLE statements DROP COLUMN seal;
ALTER TABLE operations DROP COLUMN seal;
