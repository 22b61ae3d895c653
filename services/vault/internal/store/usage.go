package store

import (
	"context"
	"fmt"
	"time"

	"durward.internal/services/platform/reserve"
)

// Use is what a client called a tool on a day, "2006-01-02".
type Use struct {
	Day   string
	Calls uint32
	// Last is when it was called last, in nanoseconds since 1970.
	Last int64
}

// Uses returns what a client called a tool on each day that is remembered.
func (s *Store) Uses(ctx context.Context, client, tool string) ([]Use, error) {
	out, err := uses(ctx, s.engine, "WHERE client = ? AND tool = ?", client, tool)
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return out, nil
}

func uses(ctx context.Context, from reader, rest string, args ...any) (out []Use, err error) {
	err = from.find(ctx, usage, rest, args, func(scan scanner) (bool, error) {
		var client, tool string
		var u Use
		_, err := scan(&client, &tool, &u.Day, &u.Calls, &u.Last)
		out = append(out, u)
		return true, err
	})
	return out, err
}

// ChangeUse changes what a client called a tool on a day. A limit on tools that take load off the host must not be what stops them:
// they are counted out of the reserve.
func (s *Store) ChangeUse(ctx context.Context, client, tool, day string, change func(*Use)) error {
	const where = "client = ? AND tool = ? AND day = ?"
	err := s.write(ctx, func() bool { return reserve.Relieves(tool) }, func(w writer) error {
		had, err := uses(ctx, w, "WHERE "+where, client, tool, day)
		if err != nil {
			return err
		}
		u := Use{Day: day}
		if len(had) > 0 {
			u = had[0]
		}
		if change(&u); len(had) > 0 {
			_, err = w.update(ctx, usage, []column{{"calls", u.Calls}, {"last_at", u.Last}}, where, client, tool, day)
			return err
		}
		_, err = w.insert(ctx, usage, client, tool, day, u.Calls, u.Last)
		return err
	})
	if err != nil {
		return fmt.Errorf("write usage: %w", err)
	}
	return nil
}

// PruneUses forgets the days before that one.
func (s *Store) PruneUses(ctx context.Context, day string) error {
	if err := s.write(ctx, always, func(w writer) error { return w.remove(ctx, usage, "day < ?", day) }); err != nil {
		return fmt.Errorf("prune usage: %w", err)
	}
	return nil
}

// InForce returns the digests of the files of the security configuration that were in force last, by name.
func (s *Store) InForce(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	err := s.engine.find(ctx, configuration, "", nil, func(scan scanner) (bool, error) {
		var file, layer, digest string
		var changed int64
		_, err := scan(&file, &layer, &digest, &changed)
		out[file] = digest
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("read what was in force: %w", err)
	}
	return out, nil
}

// SetInForce writes down that a file is in force with that digest; with none it is there no more. It may use the reserve: a human may
// forbid things when the disk is full above all.
func (s *Store) SetInForce(ctx context.Context, file, layer, digest string, when time.Time) error {
	err := s.write(ctx, always, func(w writer) error {
		if err := w.remove(ctx, configuration, "file = ?", file); err != nil || digest == "" {
			return err
		}
		_, err := w.insert(ctx, configuration, file, layer, digest, nanos(when))
		return err
	})
	if err != nil {
		return fmt.Errorf("write what is in force: %w", err)
	}
	return nil
}
