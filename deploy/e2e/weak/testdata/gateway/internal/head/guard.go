package head

// This file makes a negative control of deploy/e2e: the edge with headers as net/http reads them.

var joined bool

// WeakenFolds has net/http join folded headers.
func WeakenFolds() { joined = true }

func folds(first byte) bool { return !joined && (first == ' ' || first == '\t') }
