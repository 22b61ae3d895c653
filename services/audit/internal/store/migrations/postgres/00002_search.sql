-- +goose Up
-- As in SQLite's migrations; see there. words are lexemes as they are.
ALTER TABLE bodies ADD COLUMN channel integer NOT NULL DEFAULT 0;
CREATE INDEX bodies_channel ON bodies (channel, idx) WHERE channel != 0;
ALTER TABLE bodies ADD COLUMN words tsvector NOT NULL DEFAULT '';
CREATE INDEX bodies_words ON bodies USING gin (words);
CREATE INDEX entries_kind ON entries (kind, idx) WHERE kind NOT IN (42, 29);
CREATE INDEX entries_status ON entries (status, idx) WHERE status > 1;
CREATE INDEX entries_tier ON entries (tier, idx) WHERE tier > 1;

-- +goose Down
DROP INDEX entries_tier;
DROP INDEX entries_status;
DROP INDEX entries_kind;
DROP INDEX bodies_words;
ALTER TABLE bodies DROP COLUMN words;
DROP INDEX bodies_channel;
ALTER TABLE bodies DROP COLUMN channel;
