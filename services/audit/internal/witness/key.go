package witness

import (
	"fmt"
	"time"

	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/logproof"
)

// LoadKey reads a key file, which its owner alone can read. Its errors do not repeat the key.
func LoadKey(path string) (*logproof.Cosigner, error) {
	text, err := keyfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	signer, err := logproof.ParseCosigner(string(text), time.Now)
	if err != nil {
		return nil, fmt.Errorf("key: %s: %w", path, err)
	}
	return signer, nil
}
