package store

// fence is the condition on the row of sequencer under which a group is added: the epoch is the one that this process gave itself.
func fence() string { return "epoch = $1" }
