-- +goose Up
ALTER TABLE bodies ADD COLUMN channel INTEGER NOT NULL DEFAULT 0;
CREATE INDEX bodies_channel ON bodies (channel) WHERE channel != 0;

-- What most records are is left out: the newest entries hold enough of it. Reads and permits; what ended well; what only looks.
CREATE INDEX entries_kind ON entries (kind) WHERE kind NOT IN (42, 29);
CREATE INDEX entries_status ON entries (status) WHERE status > 1;
CREATE INDEX entries_tier ON entries (tier) WHERE tier > 1;

-- The words of arguments, summaries and reasons: which records hold one, and nothing of where. Records from before this are found by
-- everything but their words.
CREATE VIRTUAL TABLE texts USING fts5 (words, content = '', contentless_delete = 1, detail = none, tokenize = "unicode61 remove_diacritics 0");

-- +goose Down
DROP TABLE texts;
DROP INDEX entries_tier;
DROP INDEX entries_status;
DROP INDEX entries_kind;
DROP INDEX bodies_channel;
ALTER TABLE bodies DROP COLUMN channel;
