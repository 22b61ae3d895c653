package installdir

import "durward.internal/services/platform/security/ownership"

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// own refuses folders in which another user could put files.
func own(folders ...string) error { return ownership.Own(folders...) }
