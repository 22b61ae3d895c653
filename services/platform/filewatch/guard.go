package filewatch

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// compared is what counts of a Stamp: all of it.
func compared(s Stamp) Stamp { return s }
