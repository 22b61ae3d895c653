-- +goose Up
-- As in SQLite's migrations; see there.
ALTER TABLE entries ADD COLUMN pruned_by bigint;
CREATE TABLE pruned (idx bigint PRIMARY KEY);

-- +goose Down
DROP TABLE pruned;
ALTER TABLE entries DROP COLUMN pruned_by;
