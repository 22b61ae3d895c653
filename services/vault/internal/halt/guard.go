//go:build !weak

package halt

// holds reports whether what stands in the way of a grant stands in its way. A build with the tag weak, which no product has,
// replaces this file, so that a drill can show what happens without it.
func holds(inTheWay bool) bool { return inTheWay }
