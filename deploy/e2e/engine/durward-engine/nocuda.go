//go:build !nvml || !cgo

package main

import "time"

// card is a real GPU, which this build knows nothing of.
type card uint32

func (card) room() (uint, error)      { return 0, errDriver }
func (card) hold(uint) error          { return errDriver }
func (card) busy(time.Duration) error { return errDriver }
func (card) fault() error             { return errDriver }
