package usage

// underway returns the calls that are being decided on: they count, or many at once would all be the last one.
func underway(held map[*Reservation]struct{}) map[*Reservation]struct{} { return held }
