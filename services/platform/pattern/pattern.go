// Package pattern holds the regular expressions of other packages until they are used. Those with bounded repetitions become programs
// of up to 100 kB, which a command that needs none of them does not wait for.
package pattern

import (
	"regexp"
	"sync"
)

// New is an expression, compiled when it is first asked for; it panics then if the text is none.
func New(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
