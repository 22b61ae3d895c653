package credential

import "durward.internal/services/platform/weakness"

// This file makes a negative control of deploy/e2e: the vault without one of its guards.

// Guards are those that a drill build may lack: without "asked" a sink gets what it is granted in the name of any call that it runs.
var Guards = weakness.Of("asked")

func asked(err error) error {
	if Guards.Off("asked") {
		return nil
	}
	return err
}
