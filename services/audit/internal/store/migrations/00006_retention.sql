-- +goose Up
-- The record by which a human let an entry's body go; NULL: nobody did. Headers, commitments and the tree stay.
ALTER TABLE entries ADD COLUMN pruned_by INTEGER;

-- Records of pruning that are carried out to the end.
CREATE TABLE pruned (idx INTEGER PRIMARY KEY) STRICT;

-- +goose Down
DROP TABLE pruned;
ALTER TABLE entries DROP COLUMN pruned_by;
