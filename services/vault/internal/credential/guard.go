package credential

// asked returns why a call that runs is not for what is asked in its name, as it is. A drill build has the twin in deploy/e2e/weak instead.
func asked(err error) error { return err }
