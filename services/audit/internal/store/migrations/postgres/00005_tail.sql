-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE tail (
    size       bigint PRIMARY KEY,
    entries    bytea  NOT NULL,
    first_hash bigint NOT NULL,
    hashes     bytea  NOT NULL,
    checkpoint bytea  NOT NULL
) WITH (toast_tuple_target = 8160); -- what a row can hold it holds itself

-- A process of an earlier build, which knows no tail and would write its entries anew, cannot write: it names no value for this.
ALTER TABLE checkpoints ADD COLUMN tail boolean NOT NULL DEFAULT true;
ALTER TABLE checkpoints ALTER COLUMN tail DROP DEFAULT;

-- +goose Down
ALTER TABLE checkpoints DROP COLUMN tail;
DROP TABLE tail;
