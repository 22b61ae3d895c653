// Package handover brings stored credentials from the vault to the program that is about to become a service, past whatever carries them:
// the launcher makes a key for this one start, the vault encrypts to it (HPKE, RFC 9180), and the executor in between sees no value.
//
// The vault and the launcher link it. A carrier that puts a key of its own in the launcher's place gets the values; that it does not is
// its own part, and the vault gives a value only to the sink that a human named.
package handover

import (
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"errors"
	"fmt"
)

// Value is one credential for one start.
type Value struct {
	Name string `json:"name"`
	// File: the program gets a file, and Variable holds its path; otherwise Variable holds the value.
	File     bool   `json:"file"`
	Variable string `json:"variable"`
	Value    []byte `json:"value"`
}

// Key is a launcher's, for one start.
type Key struct{ private hpke.PrivateKey }

func kem() hpke.KEM { return hpke.DHKEM(ecdh.X25519()) }

// info binds what is sealed to its purpose and to the service that it is for.
func info(service string) []byte { return []byte("durward.handover.v1\x00" + service) }

// NewKey makes one.
func NewKey() (*Key, error) {
	private, err := kem().GenerateKey()
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	return &Key{private}, nil
}

// Public is what the vault encrypts to.
func (k *Key) Public() []byte { return k.private.PublicKey().Bytes() }

// Seal encrypts values for a service's launcher.
func Seal(public []byte, service string, values []Value) ([]byte, error) {
	key, err := kem().NewPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("handover: the launcher's key: %w", err)
	}
	plain, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	defer clear(plain)
	return hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), info(service), plain)
}

// Open decrypts them.
func (k *Key) Open(sealed []byte, service string) ([]Value, error) {
	plain, err := hpke.Open(k.private, hpke.HKDFSHA256(), hpke.AES256GCM(), info(service), sealed)
	if err != nil {
		return nil, errors.New("handover: what came is not sealed to this start")
	}
	defer clear(plain)
	var values []Value
	if err := json.Unmarshal(plain, &values); err != nil {
		return nil, errors.New("handover: what came holds no values")
	}
	return values, nil
}

// ForRequest is what stands in Seal and Open for a service where the value goes into a place of requests to an origin.
func ForRequest(origin, place string) string { return "request\x00" + origin + "\x00" + place }

// Clear wipes values that are needed no more.
func Clear(values []Value) {
	for i := range values {
		clear(values[i].Value)
	}
}
