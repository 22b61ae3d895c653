-- +goose Up
-- A writer's newest record of the kinds that say what its state was: redeemed, halted, resumed, approved, intent, outcome.
CREATE INDEX entries_last ON entries (writer, kind) WHERE kind IN (24, 28, 30, 31, 40, 41);

-- +goose Down
DROP INDEX entries_last;
