-- +goose Up

-- Which of its client's agents asked; '' for none in particular.
ALTER TABLE operations ADD COLUMN agent TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE operations DROP COLUMN agent;
