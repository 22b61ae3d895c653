package store

// fenced is false in a negative control: a process that lost its lead commits on.
var fenced = true

func fence() string {
	if fenced {
		return "epoch = $1"
	}
	return "epoch >= $1"
}
