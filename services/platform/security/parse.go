package security

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"durward.internal/services/platform/config"
)

// settingsFile has the shape of security.yaml; what each value may be is the setting's to say.
type settingsFile struct {
	Approvals struct {
		WaitS        *uint32 `yaml:"wait_s"`
		ScopeMaxS    *uint32 `yaml:"scope_max_s"`
		ScopeMaxUses *uint32 `yaml:"scope_max_uses"`
		FourEyes     *bool   `yaml:"four_eyes"`
	} `yaml:"approvals"`
	Dangerous struct {
		Allowed *bool   `yaml:"allowed"`
		MaxS    *uint32 `yaml:"max_s"`
	} `yaml:"dangerous"`
	TierCeiling *string `yaml:"tier_ceiling"`
	Desktop     struct {
		Allowed *bool `yaml:"allowed"`
	} `yaml:"desktop"`
	Messaging struct {
		TTLS             *uint32 `yaml:"ttl_s"`
		PerUserPerMinute *uint32 `yaml:"per_user_per_minute"`
		PerRoomPerMinute *uint32 `yaml:"per_room_per_minute"`
		PerMinute        *uint32 `yaml:"per_minute"`
	} `yaml:"messaging"`
}

// projectFile is what a project may bring: settings, rules for tools, which package policy reads, and blocked domains, which package
// destination reads.
type projectFile struct {
	Settings settingsFile `yaml:"settings"`
	Tools    any          `yaml:"tools"`
	Domains  any          `yaml:"domains"`
}

// given is one setting that a file gives.
type given struct {
	Setting
	value uint32
	file  string
	line  int
}

// parseSettings reads a security.yaml; name stands in errors.
func parseSettings(name string, data []byte) ([]given, error) {
	if config.Blank(data) {
		return nil, nil
	}
	var shape settingsFile
	if err := config.Parse(name, data, &shape); err != nil {
		return nil, err
	}
	return collect(name, data, "")
}

// parseProject reads the settings of a project's file.
func parseProject(name string, data []byte) (settings []given, tools bool, err error) {
	var shape projectFile
	if err := config.Parse(name, data, &shape); err != nil {
		return nil, false, err
	}
	settings, err = collect(name, data, "settings.")
	return settings, shape.Tools != nil, err
}

// collect finds the settings of a file that has the right shape, below a prefix.
func collect(name string, data []byte, prefix string) ([]given, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be read", name)
	}
	var out []given
	var problems []error
	for _, doc := range file.Docs {
		scalars(doc.Body, "", func(path string, node ast.Node) {
			path, ours := strings.CutPrefix(path, prefix)
			s, known := Find(path)
			if !ours || !known {
				return
			}
			token := node.GetToken()
			value, err := s.parse(token.Value)
			if err != nil {
				problems = append(problems, fmt.Errorf("%s:%d:%d: %s %w", name, token.Position.Line, token.Position.Column, path, err))
				return
			}
			out = append(out, given{s, value, name, token.Position.Line})
		})
	}
	return out, errors.Join(problems...)
}

// scalars calls found for each value below a node that is no mapping, with its dotted path.
func scalars(node ast.Node, path string, found func(path string, node ast.Node)) {
	pair := func(n *ast.MappingValueNode) {
		key := n.Key.GetToken().Value
		if path != "" {
			key = path + "." + key
		}
		scalars(n.Value, key, found)
	}
	switch n := node.(type) {
	case nil, *ast.NullNode:
	case *ast.MappingNode:
		for _, v := range n.Values {
			pair(v)
		}
	case *ast.MappingValueNode:
		pair(n)
	default:
		found(path, node)
	}
}
