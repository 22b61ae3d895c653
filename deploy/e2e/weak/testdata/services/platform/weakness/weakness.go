// Package weakness holds which guards of a program are switched off. It exists in drill builds alone, the negative controls of deploy/e2e.
package weakness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Guards are guards by name, and which of them are switched off. They are safe for concurrent use.
type Guards struct {
	// also is what else switches a guard off; nil: nothing else.
	also map[string]func()
	mu   sync.RWMutex
	off  map[string]bool
}

// Of returns guards of those names.
func Of(names ...string) *Guards {
	g := &Guards{also: map[string]func(){}, off: map[string]bool{}}
	for _, name := range names {
		g.also[name] = nil
	}
	return g
}

// Also adds a guard that another package switches off.
func (g *Guards) Also(name string, weaken func()) *Guards {
	g.also[name] = weaken
	return g
}

// And adds another package's guards.
func (g *Guards) And(others *Guards) *Guards {
	for name := range others.also {
		g.also[name] = func() { others.set(name, true) }
	}
	return g
}

// Names are the guards' names, in order.
func (g *Guards) Names() []string { return slices.Sorted(maps.Keys(g.also)) }

// Weaken switches guards off, by comma-separated names: all of them, or none where one is not known.
func (g *Guards) Weaken(names string) error {
	list := strings.Split(names, ",")
	for _, name := range list {
		if _, known := g.also[name]; !known {
			return fmt.Errorf("no guard is called %q; there are %s", name, strings.Join(g.Names(), ", "))
		}
	}
	for _, name := range list {
		g.set(name, true)
	}
	return nil
}

// Restore switches a guard of this package's own on again.
func (g *Guards) Restore(name string) { g.set(name, false) }

func (g *Guards) set(name string, off bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.off[name] = off
	if also := g.also[name]; off && also != nil {
		also()
	}
}

// Off reports whether a guard is switched off.
func (g *Guards) Off(name string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.off[name]
}
