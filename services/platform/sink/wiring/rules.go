package wiring

import (
	"fmt"
	"log/slog"
	"reflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/sink/unattended"
)

// maxRules bounds the file, as the config package does.
const maxRules = 1 << 20

// Settings are a sink's configuration, as its file says it.
type Settings interface {
	process.Settings
	// Rules are the list of what runs unattended, and all else that the file says, for reflect.DeepEqual.
	Rules() (unattended []any, others any)
}

// RulesConfig is what Rules are made of; everything but GatewayUser and Development is required.
type RulesConfig struct {
	// Name is what records call the file, wherever it is: "executor.yaml"; Path is the file, the sink's own configuration.
	Name, Path string
	// Role is the sink's: its tools are the ones that may be listed.
	Role optionsv1.Role
	// Empty returns settings to read the file into.
	Empty func() Settings
	// GatewayUser may neither own nor write it; "": not checked. In development nobody is.
	GatewayUser string
	Development bool
	// Set takes the list over, or refuses it.
	Set    func([]unattended.Entry) error
	Log    process.Log
	Logger *slog.Logger
}

// Rules keep what runs without a human's statement as the configuration file says it.
type Rules = Live[ruling]

// ruling is what the file says: the list, and all else.
type ruling struct {
	list   []unattended.Entry
	others any
}

// OpenRules reads the file for the first time; it has to be good.
func OpenRules(cfg RulesConfig) (*Rules, error) {
	foreign, err := ownership.Gateway(cfg.GatewayUser, cfg.Development)
	if err != nil {
		return nil, err
	}
	if cfg.GatewayUser == "" && !cfg.Development {
		cfg.Logger.Warn("DANGEROUS: without gateway_user nobody checks whether the gateway could have written what runs here without a human",
			"file", cfg.Name)
	}
	var first, last *ruling
	r, err := OpenLive(LiveConfig[ruling]{
		Name: cfg.Name, Path: cfg.Path, Max: maxRules, Foreign: foreign, Log: cfg.Log, Logger: cfg.Logger,
		Parse: func(raw []byte) (out ruling, err error) {
			s := cfg.Empty()
			if err := config.Parse(cfg.Name, raw, s); err != nil {
				return out, err
			}
			var items []any
			items, out.others = s.Rules()
			out.list, err = CheckUnattended(items, cfg.Role)
			return out, err
		},
		Tell: func(before, after ruling) string {
			if reflect.DeepEqual(before.list, after.list) {
				return ""
			}
			return clean.Count(len(after.list), "call") + " may run without a human's statement"
		},
		Set: func(now ruling) error {
			if last == nil || !reflect.DeepEqual(last.list, now.list) {
				if err := cfg.Set(now.list); err != nil {
					return err
				}
				for i, u := range now.list {
					if why := u.Idle(); why != "" {
						cfg.Logger.Warn("an unattended entry lets nothing run now", "file", cfg.Name, "entry", i+1, "tool", u.Tool, "cause", why)
					}
				}
			}
			if last = &now; first == nil {
				first = last
			}
			if !reflect.DeepEqual(first.others, now.others) {
				cfg.Logger.Warn(cfg.Name + " has changed in more than its unattended list: that counts after a restart")
			}
			return nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Name, err)
	}
	for _, u := range first.list {
		if len(u.Clients) == 0 && len(u.Arguments) == 0 {
			cfg.Logger.Warn("DANGEROUS: a tool runs here for any client, with any arguments, without a human's statement", "tool", u.Tool)
		}
	}
	return r, nil
}

// CheckUnattended reads the list of a sink's file and holds it to the tools of its role.
func CheckUnattended(items []any, role optionsv1.Role) ([]unattended.Entry, error) {
	list, err := unattended.Parse(items)
	if err != nil {
		return nil, err
	}
	return list, unattended.Check(list, role)
}
