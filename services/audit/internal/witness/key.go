package witness

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/logproof"
)

// A witness's key file holds one line, PRIVATE+KEY+NAME+SEED: the name of the witness and the seed of its Ed25519 key in base64.
const keyPrefix = "PRIVATE+KEY+"

// FormatKey is the content of a key file.
func FormatKey(name string, key ed25519.PrivateKey) string {
	return keyPrefix + name + "+" + base64.StdEncoding.EncodeToString(key.Seed()) + "\n"
}

// LoadKey reads a key file, which its owner alone can read. Its errors do not repeat the key.
func LoadKey(path string) (*logproof.Cosigner, error) {
	text, err := keyfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	rest, found := strings.CutPrefix(strings.TrimSuffix(string(text), "\n"), keyPrefix)
	name, seed64, two := strings.Cut(rest, "+")
	seed, err := base64.StdEncoding.Strict().DecodeString(seed64)
	if !found || !two || err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("key: %s does not hold a witness's key: make one with auditwitness -new-key NAME", path)
	}
	signer, err := logproof.NewCosigner(name, ed25519.NewKeyFromSeed(seed), time.Now)
	return signer, err
}
