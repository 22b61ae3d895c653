// Package credential knows what clients.yaml says of a client, and the form in which a bearer token is kept: the gateway, which tells requests
// apart by it, the vault, which lets in by it, and the operator's program, which writes it. It judges nothing, and holds no token.
package credential

import "crypto/sha256"

// Digest is the SHA-256 of a token, as clients.yaml holds it in hex. A token is 256 random bits: a plain hash needs no salt.
func Digest(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

// File is clients.yaml.
type File struct {
	Clients []Client `yaml:"clients"`
}

// Client is one entry of clients.yaml, as it stands there. deploy/config/clients.yaml says what each field means.
type Client struct {
	ID          string   `yaml:"id" json:"id"`
	TokenSHA256 string   `yaml:"token_sha256" json:"-"`
	Key         string   `yaml:"key" json:"-"`
	Identity    string   `yaml:"identity" json:"identity,omitempty"`
	May         []string `yaml:"may" json:"may,omitempty"`
	Channel     string   `yaml:"channel" json:"channel"`
	TierCeiling string   `yaml:"tier_ceiling" json:"tier_ceiling"`
	Limits      Limits   `yaml:"limits" json:"limits"`
	Agents      []string `yaml:"agents" json:"agents,omitempty"`
	// Credentials are those that requests of its agents may refer to.
	Credentials []string `yaml:"credentials" json:"credentials,omitempty"`
	User        string   `yaml:"user" json:"user,omitempty"`
	Remote      bool     `yaml:"remote" json:"remote,omitempty"`
	Previous    Previous `yaml:"previous" json:"previous,omitzero"`
	Revoked     bool     `yaml:"revoked" json:"revoked"`
}

// Previous is the credential that a rotation replaced, until it ends.
type Previous struct {
	TokenSHA256 string `yaml:"token_sha256" json:"-"`
	Key         string `yaml:"key" json:"-"`
	// Until is RFC 3339 in UTC, whole seconds.
	Until string `yaml:"until" json:"until"`
}

// Limits of a client; 0 means the vault's default.
type Limits struct {
	Sessions int `yaml:"sessions" json:"sessions"`
	Pending  int `yaml:"pending" json:"pending"`
}
