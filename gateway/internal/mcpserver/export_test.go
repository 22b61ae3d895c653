package mcpserver

import "time"

// TellingEvery returns the configuration with another time between the notes that a waiting client gets.
func (c Config) TellingEvery(d time.Duration) Config {
	c.progressEvery = d
	return c
}
