package need

import (
	"testing"
	"time"

	"durward.internal/services/platform/inspect"
)

func TestSmokeH3(t *testing.T) {
	b := newBench(t)
	b.edit("/nowhere/model.gguf", "/tmp/h3/model")
	book := b.book(func(c *Config) { c.Inspector = &inspect.Inspector{Program: "/tmp/h3/bin/durward-inspect"} })
	s := b.entry("filed")
	t.Log(book.Awake(s))
	began := time.Now()
	book.renew(t.Context(), s)
	t.Log(time.Since(began), book.Awake(s))
	c, ok := book.Card(s)
	t.Log(c, ok)
	began = time.Now()
	book.renew(t.Context(), s)
	t.Log(time.Since(began))
	for _, n := range []uint32{4096, 16384, 40960} {
		t.Log(book.AwakeAt(s, n))
	}
}
