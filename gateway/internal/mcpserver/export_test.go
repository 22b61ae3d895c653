package mcpserver

import "time"

// NextAfter is what a failed call's answer names as the next call.
var NextAfter = nextAfter

// TellingEvery returns the configuration with another time between the notes that a waiting client gets.
func (c Config) TellingEvery(d time.Duration) Config {
	c.progressEvery = d
	return c
}
