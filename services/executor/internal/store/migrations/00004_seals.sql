-- +goose Up
-- Keyed digests of the rows, and of each table: package database writes and checks them.
ALTER TABLE spent ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE statement_use ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE control ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE switch ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE switch_step ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE host_mode ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
CREATE TABLE seals (
    name     TEXT PRIMARY KEY,
    rows     INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    sum      BLOB NOT NULL,
    seal     BLOB NOT NULL
) WITHOUT ROWID;

-- Why it is halted, by whom and since when.
ALTER TABLE control ADD COLUMN reason TEXT NOT NULL DEFAULT '';
ALTER TABLE control ADD COLUMN changed_by TEXT NOT NULL DEFAULT '';
ALTER TABLE control ADD COLUMN changed_at INTEGER NOT NULL DEFAULT 0;
