package downstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
)

const (
	// patience bounds how long compiling or validating may take.
	patience = 2 * time.Second
	// maxWork bounds the values of an instance, times what the schema looks at each.
	maxWork = 5_000_000
)

// ErrTooDear means that checking the arguments would take too long. It says nothing of them.
var ErrTooDear = errors.New("these arguments take too long to be checked against the tool's schema")

// Schema is a stranger's schema, linted and compiled. It is safe for concurrent use.
type Schema struct {
	validate func(instance any) error
	cost     int
}

// Compiler makes of a schema that was linted what validates a value; both are decoded, with json.Number. Its errors are sentences. Package
// validator has the one of the processes that check arguments.
type Compiler func(schema any) (validate func(instance any) error, err error)

// Compile lints a schema and compiles it.
func Compile(raw json.RawMessage, compiler Compiler) (*Schema, error) {
	cost, err := lint(raw)
	if err != nil {
		return nil, err
	}
	s := &Schema{cost: cost}
	err = bounded(context.Background(), func() error {
		document, err := decode(raw)
		if err == nil {
			s.validate, err = compiler(document)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the schema is none: %s", clean.Line(err.Error(), 300))
	}
	return s, nil
}

// Validate checks arguments. An error is a sentence for their sender, which names the place, or ErrTooDear; it never panics, and it
// returns when ctx ends.
func (s *Schema) Validate(ctx context.Context, arguments []byte) error {
	if err := canonical.Strict(arguments); err != nil {
		return err
	}
	instance, err := decode(arguments)
	if err != nil {
		return err
	}
	weight := len(arguments) / 32
	if !weigh(instance, &weight) {
		return fmt.Errorf("a number of more than %d characters, or with a large exponent", maxNumber)
	}
	if weight > maxWork/s.cost {
		return ErrTooDear
	}
	err = bounded(ctx, func() error { return s.validate(instance) })
	if err == nil || errors.Is(err, ErrTooDear) {
		return err
	}
	return errors.New(clean.Line(err.Error(), 300))
}

// weigh counts values, and reports whether every number is short.
func weigh(v any, n *int) bool {
	*n++
	switch v := v.(type) {
	case json.Number:
		return shortNumber(v.String())
	case []any:
		for _, item := range v {
			if !weigh(item, n) {
				return false
			}
		}
	case map[string]any:
		for _, item := range v {
			*n++ // names are looked at, too
			if !weigh(item, n) {
				return false
			}
		}
	}
	return true
}

// bounded does what has been made finite before, but not quick, beside the caller: it cannot be stopped, and what crashes in it is an
// error. What goes on when the caller leaves ends by itself.
func bounded(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if recover() != nil {
				done <- errors.New("what checks it cannot cope with it")
			}
		}()
		done <- do()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ErrTooDear
	}
}
