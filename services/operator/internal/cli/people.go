package cli

import (
	"fmt"
	"os"
	"slices"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/security"
)

// ClientFacts are what rules look at of a client.
type ClientFacts struct {
	ID, User, Channel, Ceiling string
	Agents                     []string
	KeyBound                   bool
}

// ReadClientFacts reads clients.yaml for what rules look at; whether the file is right is for who else reads it.
func ReadClientFacts(path string) ([]ClientFacts, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Clients []struct {
			ID          string   `yaml:"id"`
			User        string   `yaml:"user"`
			Channel     string   `yaml:"channel"`
			TierCeiling string   `yaml:"tier_ceiling"`
			Key         string   `yaml:"key"`
			Agents      []string `yaml:"agents"`
			Revoked     bool     `yaml:"revoked"`
		} `yaml:"clients"`
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("%s cannot be read", path)
	}
	var out []ClientFacts
	for _, c := range doc.Clients {
		if !c.Revoked {
			out = append(out, ClientFacts{ID: c.ID, User: c.User, Channel: c.Channel, Ceiling: c.TierCeiling, Agents: c.Agents, KeyBound: c.Key != ""})
		}
	}
	return out, nil
}

// FourEyes is the setting by which a client's own user does not approve what it asks.
const FourEyes = "approvals.four_eyes"

// KnownUsers are the users that clients.yaml gives to clients that are let in.
func KnownUsers(list []ClientFacts) []string {
	var out []string
	for _, c := range list {
		if c.User != "" && !slices.Contains(out, c.User) {
			out = append(out, c.User)
		}
	}
	return out
}

// NeedsUser reports whether four eyes bind a client without a user.
func NeedsUser(cfg installdir.Config, id string) bool {
	options, done, err := SecurityOptions(cfg)
	if err != nil {
		return false
	}
	defer done()
	state, _ := security.Look(options, nil)
	return state != nil && state.Values(id, "").FourEyes
}
