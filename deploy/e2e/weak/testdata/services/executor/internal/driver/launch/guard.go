package launch

import "durward.internal/services/platform/handover"

// This file makes a negative control of deploy/e2e: an executor that opens what the vault seals for a launcher.

// seen are the values that a weakened executor has opened; nil: it opens none.
var seen [][]handover.Value

// WeakenHandover has the executor open what the vault seals for a launcher, and seal it again.
func WeakenHandover() { seen = [][]handover.Value{} }

func recipient(public []byte) (to []byte, pass func(sealed []byte, service string) []byte) {
	key, err := handover.NewKey()
	if seen == nil || err != nil {
		return public, func(sealed []byte, _ string) []byte { return sealed }
	}
	return key.Public(), func(sealed []byte, service string) []byte {
		values, err := key.Open(sealed, service)
		if err != nil {
			return nil
		}
		seen = append(seen, values)
		again, _ := handover.Seal(public, service, values)
		return again
	}
}
