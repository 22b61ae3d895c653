-- +goose Up
-- What a writer's state was is asked for at each start, too.
DROP INDEX entries_last;
CREATE INDEX entries_last ON entries (writer, kind) WHERE kind IN (3, 24, 28, 30, 31, 40, 41);

-- +goose Down
DROP INDEX entries_last;
CREATE INDEX entries_last ON entries (writer, kind) WHERE kind IN (24, 28, 30, 31, 40, 41);
