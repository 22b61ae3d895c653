package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// What may pass is waited for; what a human has to put right ends the start.
func TestTransient(t *testing.T) {
	said := func(code string) error { return &pgconn.PgError{Code: code} }
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"another password":     {said("28P01"), false},
		"no such database":     {said("3D000"), false},
		"no such table":        {said("42P01"), false},
		"an unsafe server":     {fmt.Errorf("%w: fsync is off", ErrUnsafe), false},
		"anything else":        {errors.New("the key is another"), false},
		"no code":              {said(""), false},
		"it is starting":       {said("57P03"), true},
		"it is full":           {said("53100"), true},
		"a lock":               {said("55P03"), true},
		"a connection":         {said("08006"), true},
		"nobody listens":       {&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		"no answer":            {context.DeadlineExceeded, true},
		"the connection broke": {fmt.Errorf("receive: %w", io.ErrUnexpectedEOF), true},
	} {
		if got := Transient(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Parameters are numbered from one on.
func TestDollars(t *testing.T) {
	for text, want := range map[string]string{"": "", "SELECT 1": "SELECT 1", "a = ? AND b IN (?, ?)": "a = $1 AND b IN ($2, $3)", "?": "$1"} {
		if got := Dollars(text); got != want {
			t.Errorf("%q is %q", text, got)
		}
	}
}
