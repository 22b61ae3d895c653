package dropped

import (
	"errors"
	"io"
	"os"
	"testing"
)

type record struct{}

func (record) Close() error { return errors.New("not written") }

func TestDropped(t *testing.T) {
	t.Error("asserts")
	work()        // want "the error of work is dropped"
	_ = work()    // want "the error of work is dropped"
	_, _ = pair() // want "the error of pair is dropped"
	go func() {
		_ = work() // want "the error of work is dropped"
	}()
	_ = record{}.Close()   // want "the error of record{}.Close is dropped"
	os.RemoveAll(t.Name()) // want "the error of os.RemoveAll is dropped"
	t.Cleanup(func() {
		_ = work() // want "the error of work is dropped"
	})
	io.WriteString(os.Stdout, "x") // want "the error of io.WriteString is dropped"
}

func work() error { return nil }

func pair() (int, error) { return 0, nil }
