-- +goose Up
-- The newest entries, as one commit brought them, until they are in the tables above. size: how many entries the log has with these.
-- entries: each as auditv1.Entry without its leaf, after its length. first_hash: where the tree's hashes go on with these.
CREATE TABLE tail (
    size       INTEGER PRIMARY KEY,
    entries    BLOB    NOT NULL,
    first_hash INTEGER NOT NULL,
    hashes     BLOB    NOT NULL,
    checkpoint BLOB    NOT NULL
) STRICT;

-- +goose Down
DROP TABLE tail;
