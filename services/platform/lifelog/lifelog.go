// Package lifelog holds what the log of each server process says of its begin and of its end, for the programs that read it. Such a
// program is not one itself, and links nothing of a server's.
package lifelog

// The messages. Failed comes with the field error.
const (
	Starting = "starting"
	Failed   = "failed"
	Stopped  = "stopped"
)
