package main

import "flag"

// drillFlags adds nothing: only a drill build can weaken a guard.
func drillFlags(*flag.FlagSet) {}
