package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/sink"
)

const (
	// maxRules bounds the file, as the config package does.
	maxRules = 1 << 20
	// rulesName is what records call the file, wherever it is.
	rulesName = "executor.yaml"
)

// rulesConfig is what rules are made of; everything but GatewayUser and Development is required.
type rulesConfig struct {
	// Path is the executor's own configuration file.
	Path string
	// GatewayUser may neither own nor write it; "": not checked. In development nobody is.
	GatewayUser string
	Development bool
	// Set takes the list over, or refuses it.
	Set func([]sink.Unattended) error
	Log interface {
		Spool(context.Context, *auditv1.Record) error
	}
	Logger *slog.Logger
}

// rules keep what runs without a human's statement as the configuration file says it. Whoever is to change that list changes a
// file that a human owns: no RPC does. A file that is broken, or that the gateway's user could have written, changes nothing.
type rules struct {
	cfg     rulesConfig
	foreign *ownership.Foreign
	// digest is that of the file as it was taken over last, and list what it lists; settings is all that it said at the start.
	digest   string
	list     []sink.Unattended
	settings *settings
	// problem is what was said last to be wrong.
	problem string
}

// openRules reads the file for the first time; it has to be good.
func openRules(cfg rulesConfig) (*rules, error) {
	r := &rules{cfg: cfg}
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
			"file", rulesName)
	}
	s, list, digest, err := r.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rulesName, err)
	}
	if err := cfg.Set(list); err != nil {
		return nil, fmt.Errorf("%s: %w", rulesName, err)
	}
	r.settings, r.list, r.digest = s, list, digest
	for _, u := range list {
		if len(u.Clients) == 0 && len(u.Arguments) == 0 {
			cfg.Logger.Warn("DANGEROUS: a tool runs here for any client, with any arguments, without a human's statement", "tool", u.Tool)
		}
	}
	return r, nil
}

// place is where the file is. A link is followed only where nobody's rights matter, as those of a cluster's configuration are.
func (r *rules) place() string {
	if r.foreign == nil {
		if real, err := filepath.EvalSymlinks(r.cfg.Path); err == nil {
			return real
		}
	}
	return r.cfg.Path
}

// look looks at the file, and at the folders above it where it counts who may write them.
func (r *rules) look() filewatch.Stamps {
	s := filewatch.Paths(r.cfg.Path)()
	if r.foreign != nil {
		s.Above(r.cfg.Path)
	}
	return s
}

// read reads the whole file, strictly.
func (r *rules) read() (*settings, []sink.Unattended, string, error) {
	raw, err := ownership.ReadFile(r.place(), maxRules, r.foreign)
	if err != nil {
		return nil, nil, "", err
	}
	s := &settings{}
	if err := config.Parse(rulesName, raw, s); err != nil {
		return nil, nil, "", err
	}
	if r.settings != nil {
		s.AllowRemote = r.settings.AllowRemote
	}
	list, err := sink.ParseUnattended(s.Unattended)
	if err != nil {
		return nil, nil, "", err
	}
	return s, list, canonical.DigestText(raw), nil
}

// watch takes over what changes until ctx ends.
func (r *rules) watch(ctx context.Context) {
	filewatch.New(r.look, func() error { return r.check(ctx) }).Run(ctx)
}

// check takes over what changed. An error says that it has to be tried again.
func (r *rules) check(ctx context.Context) error {
	s, list, digest, err := r.read()
	if errors.Is(err, ownership.ErrUnsteady) {
		return err // it is being written; the next look finds it whole
	}
	if err == nil && digest != r.digest {
		err = r.adopt(ctx, s, list, digest)
	}
	problem := ""
	if err != nil {
		problem = clean.Line(err.Error(), 500)
	}
	switch problem {
	case r.problem:
	case "":
		r.cfg.Logger.Info(rulesName + " is good again")
	default:
		r.cfg.Logger.Error("NOT TAKEN OVER: what was in force stays", "file", rulesName, "error", problem)
		if err := r.note(ctx, auditv1.Kind_KIND_CONFIG_REFUSED, digest, problem); err != nil {
			r.cfg.Logger.Error("a refused configuration could not be recorded", "error", err)
		}
	}
	r.problem = problem
	return err
}

// adopt puts a changed file into force, as far as that needs no restart. It is recorded before it counts.
func (r *rules) adopt(ctx context.Context, s *settings, list []sink.Unattended, digest string) error {
	if !reflect.DeepEqual(list, r.list) {
		if err := sink.CheckUnattended(list, optionsv1.Role_ROLE_EXECUTOR); err != nil {
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
	was, is := *r.settings, *s
	was.Unattended, is.Unattended = nil, nil
	was.path, was.development = nil, false
	if !reflect.DeepEqual(was, is) {
		r.cfg.Logger.Warn(rulesName + " has changed in more than its unattended list: that counts after a restart")
	}
	r.list, r.digest = list, digest
	return nil
}

// note records what became of a change: who announced it is in the vault's records, by the digest.
func (r *rules) note(ctx context.Context, kind auditv1.Kind, digest, what string) error {
	status := auditv1.Status_STATUS_OK
	body := &auditv1.Body{
		Summary: rulesName + ": " + what, Details: map[string]string{"file": rulesName, "before": r.digest, "after": digest},
	}
	if kind == auditv1.Kind_KIND_CONFIG_REFUSED {
		status, body.Summary, body.Reason = auditv1.Status_STATUS_ERROR, rulesName+" was refused", what
	}
	return r.cfg.Log.Spool(ctx, &auditv1.Record{Kind: kind, Time: timestamppb.Now(), Status: status, Body: body})
}

// ruleTimeout bounds how long what a rule is about to do waits for the log.
const ruleTimeout = 2 * time.Second

// recordRules returns what records the executor's acts by rule. What is about to be done is in the log before it is done, or it
// is not done; how it went may reach the log later.
func recordRules(log sink.Recorder) service.Rule {
	return func(ctx context.Context, what string, s *catalog.Service, stage service.Stage, how error) error {
		record := &auditv1.Record{
			Kind: auditv1.Kind_KIND_RULE, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_PENDING,
			Body: &auditv1.Body{Summary: clean.Line(what, 500), Details: map[string]string{}},
		}
		if s != nil {
			record.Body.Details["service_id"] = s.ID
		}
		ctx, cancel := context.WithTimeout(ctx, ruleTimeout)
		defer cancel()
		switch {
		case stage == service.Intent:
			_, rerr := log.Record(ctx, record)
			return rerr
		case how == nil:
			record.Status = auditv1.Status_STATUS_OK
		default:
			record.Status, record.Body.Reason = auditv1.Status_STATUS_ERROR, clean.Line(how.Error(), 500)
		}
		_, rerr := log.Report(ctx, record)
		return rerr
	}
}
