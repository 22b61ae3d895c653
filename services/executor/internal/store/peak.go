package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"time"

	"durward.internal/services/platform/database"
)

// keepConfigurations is how many ways of running one service are remembered, and keepPeaks how many rows of all services.
const (
	keepConfigurations = 8
	keepPeaks          = 8192
)

// States that a peak is of.
const (
	PeakAwake   = "awake"
	PeakAsleep  = "asleep"
	PeakLoading = "loading"
)

// Peak is the most that was measured of one service's GPU memory in one state and one configuration.
type Peak struct {
	Service string
	// Digest is over the service's entry and what that names, GPUs says what its GPUs are, State is one of the constants.
	Digest, GPUs, State string
	// MiB is by the service's own order of its GPUs.
	MiB []uint32
	// Readings is how many measurements it is the most of.
	Readings uint32
	// Run is when the run began that it was seen in last; First and Last are when it was measured.
	Run, First, Last time.Time
}

// Peaks returns all of them, those of one service together.
func (s *Store) Peaks(ctx context.Context) (out []Peak, err error) {
	err = database.Each(ctx, s.DB, func(scan func(...any) error) error {
		var p Peak
		var mib string
		var run, first, last int64
		if err := scan(&p.Service, &p.Digest, &p.GPUs, &p.State, &mib, &p.Readings, &run, &first, &last); err != nil {
			return err
		}
		p.Run, p.First, p.Last = time.Unix(0, run), time.Unix(0, first), time.Unix(0, last)
		err := json.Unmarshal([]byte(mib), &p.MiB)
		out = append(out, p)
		return err
	}, `SELECT service, digest, gpus, state, mib, readings, run_since, first_at, last_at FROM peak ORDER BY service, digest, gpus, state`)
	return out, failed(err)
}

// NotePeak writes one down. What is there already never becomes less: each GPU keeps the larger number, and readings are not
// forgotten. Of one service the configurations seen last are kept.
func (s *Store) NotePeak(ctx context.Context, p *Peak) error {
	return s.Within(ctx, func(tx *sql.Tx) error {
		peak, readings, first := append([]uint32{}, p.MiB...), p.Readings, p.First.UnixNano()
		var known string
		var times uint32
		var since int64
		err := tx.QueryRowContext(ctx, `SELECT mib, readings, first_at FROM peak WHERE service = ? AND digest = ? AND gpus = ? AND state = ?`,
			p.Service, p.Digest, p.GPUs, p.State).Scan(&known, &times, &since)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		default:
			var before []uint32
			if err := json.Unmarshal([]byte(known), &before); err != nil {
				return err
			}
			for i := range min(len(peak), len(before)) {
				peak[i] = max(peak[i], before[i])
			}
			readings, first = max(readings, times), min(first, since)
		}
		mib, err := json.Marshal(peak)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO peak (service, digest, gpus, state, mib, readings, run_since, first_at, last_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, p.Service, p.Digest, p.GPUs, p.State, string(mib), min(readings, math.MaxInt32),
			p.Run.UnixNano(), first, p.Last.UnixNano()); err != nil {
			return err
		}
		return trimPeaks(ctx, tx, p.Service)
	})
}

// trimPeaks drops the configurations of a service that were seen the longest ago, and the oldest rows of all beyond what is kept.
func trimPeaks(ctx context.Context, tx *sql.Tx, service string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM peak WHERE service = ?1 AND (digest, gpus) NOT IN (
		SELECT digest, gpus FROM peak WHERE service = ?1 GROUP BY digest, gpus ORDER BY max(last_at) DESC, digest, gpus LIMIT ?2)`,
		service, keepConfigurations); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM peak WHERE (service, digest, gpus, state) IN (
		SELECT service, digest, gpus, state FROM peak ORDER BY last_at DESC, service, digest, gpus, state LIMIT -1 OFFSET ?)`, keepPeaks)
	return err
}
