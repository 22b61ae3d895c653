package halt

// holds reports whether what stands in the way of a grant stands in its way. Its twin in
// deploy/e2e/weak shows what happens without it.
func holds(inTheWay bool) bool { return inTheWay }
