package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/filewatch"
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

// Rules keep what runs without a human's statement as the configuration file says it. Whoever is to change that list changes a
// file that a human owns: no RPC does. A file that is broken, or that the gateway's user could have written, changes nothing.
type Rules struct {
	cfg     RulesConfig
	foreign *ownership.Foreign
	// digest is that of the file as it was taken over last, and list what it lists; others is all else that it said at the start.
	digest string
	list   []unattended.Entry
	others any
	// problem is what was said last to be wrong.
	problem string
}

// OpenRules reads the file for the first time; it has to be good.
func OpenRules(cfg RulesConfig) (*Rules, error) {
	r := &Rules{cfg: cfg}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, err
	}
	r.cfg.Path = path
	if r.foreign, err = ownership.Gateway(cfg.GatewayUser, cfg.Development); err != nil {
		return nil, err
	}
	if cfg.GatewayUser == "" && !cfg.Development {
		cfg.Logger.Warn("DANGEROUS: without gateway_user nobody checks whether the gateway could have written what runs here without a human",
			"file", r.cfg.Name)
	}
	others, list, digest, err := r.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.cfg.Name, err)
	}
	if err := cfg.Set(list); err != nil {
		return nil, fmt.Errorf("%s: %w", r.cfg.Name, err)
	}
	r.others, r.list, r.digest = others, list, digest
	for _, u := range list {
		if len(u.Clients) == 0 && len(u.Arguments) == 0 {
			cfg.Logger.Warn("DANGEROUS: a tool runs here for any client, with any arguments, without a human's statement", "tool", u.Tool)
		}
	}
	return r, nil
}

// place is where the file is. A link is followed only where nobody's rights matter, as those of a cluster's configuration are.
func (r *Rules) place() string {
	if r.foreign == nil {
		if real, err := filepath.EvalSymlinks(r.cfg.Path); err == nil {
			return real
		}
	}
	return r.cfg.Path
}

// look looks at the file, and at the folders above it where it counts who may write them.
func (r *Rules) look() filewatch.Stamps {
	s := filewatch.Paths(r.cfg.Path)()
	if r.foreign != nil {
		s.Above(r.cfg.Path)
	}
	return s
}

// read reads the whole file, strictly.
func (r *Rules) read() (others any, list []unattended.Entry, digest string, err error) {
	raw, err := ownership.ReadFile(r.place(), maxRules, r.foreign)
	if err != nil {
		return nil, nil, "", err
	}
	s := r.cfg.Empty()
	if err := config.Parse(r.cfg.Name, raw, s); err != nil {
		return nil, nil, "", err
	}
	items, others := s.Rules()
	if list, err = unattended.Parse(items); err != nil {
		return nil, nil, "", err
	}
	return others, list, canonical.DigestText(raw), nil
}

// Watch takes over what changes until ctx ends.
func (r *Rules) Watch(ctx context.Context) {
	filewatch.New(r.look, func() error { return r.check(ctx) }).Run(ctx)
}

// check takes over what changed. An error says that it has to be tried again.
func (r *Rules) check(ctx context.Context) error {
	others, list, digest, err := r.read()
	if errors.Is(err, ownership.ErrUnsteady) {
		return err // it is being written; the next look finds it whole
	}
	if err == nil && digest != r.digest {
		err = r.adopt(ctx, others, list, digest)
	}
	problem := ""
	if err != nil {
		problem = clean.Line(err.Error(), 500)
	}
	switch problem {
	case r.problem:
	case "":
		r.cfg.Logger.Info(r.cfg.Name + " is good again")
	default:
		r.cfg.Logger.Error("NOT TAKEN OVER: what was in force stays", "file", r.cfg.Name, "error", problem)
		if err := r.note(ctx, auditv1.Kind_KIND_CONFIG_REFUSED, digest, problem); err != nil {
			r.cfg.Logger.Error("a refused configuration could not be recorded", "error", err)
		}
	}
	r.problem = problem
	return err
}

// adopt puts a changed file into force, as far as that needs no restart. It is recorded before it counts.
func (r *Rules) adopt(ctx context.Context, others any, list []unattended.Entry, digest string) error {
	if !reflect.DeepEqual(list, r.list) {
		if err := unattended.Check(list, r.cfg.Role); err != nil {
			return err
		}
		if err := r.note(ctx, auditv1.Kind_KIND_CONFIG_FOUND, digest, fmt.Sprintf("%d calls may run without a human's statement", len(list))); err != nil {
			return fmt.Errorf("it cannot be recorded: %w", err)
		}
		if err := r.cfg.Set(list); err != nil {
			return err
		}
		r.cfg.Logger.Warn("what runs here without a human's statement has changed", "entries", len(list))
	}
	if !reflect.DeepEqual(r.others, others) {
		r.cfg.Logger.Warn(r.cfg.Name + " has changed in more than its unattended list: that counts after a restart")
	}
	r.list, r.digest = list, digest
	return nil
}

// note records what became of a change: who announced it is in the vault's records, by the digest.
func (r *Rules) note(ctx context.Context, kind auditv1.Kind, digest, what string) error {
	status := auditv1.Status_STATUS_OK
	body := &auditv1.Body{
		Summary: r.cfg.Name + ": " + what, Details: map[string]string{"file": r.cfg.Name, "before": r.digest, "after": digest},
	}
	if kind == auditv1.Kind_KIND_CONFIG_REFUSED {
		status, body.Summary, body.Reason = auditv1.Status_STATUS_ERROR, r.cfg.Name+" was refused", what
	}
	return r.cfg.Log.Spool(ctx, &auditv1.Record{Kind: kind, Time: timestamppb.Now(), Status: status, Body: body})
}
