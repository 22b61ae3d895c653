package main

import "flag"

// guardFlags adds no flag: every guard is always there.
func guardFlags(*flag.FlagSet) {}
