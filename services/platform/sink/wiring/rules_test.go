package wiring

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/sink/unattended"
)

// ledger takes records.
type ledger struct {
	records []*auditv1.Record
	full    bool
}

func (l *ledger) Spool(_ context.Context, r *auditv1.Record) error {
	if l.full {
		return errors.New("full")
	}
	l.records = append(l.records, r)
	return nil
}

// file is a sink's configuration that holds nothing else.
type file struct {
	config.Common `yaml:",inline"`
	Unattended    []any `yaml:"unattended"`
}

func (f *file) Validate() error                 { return nil }
func (f *file) Rules() (list []any, others any) { return f.Unattended, f.Common }

// ruled is a configuration file with who reads it.
type ruled struct {
	t    *testing.T
	path string
	list []unattended.Entry
	sets int
	log  ledger
}

func newRuled(t *testing.T) *ruled {
	t.Helper()
	return &ruled{t: t, path: filepath.Join(t.TempDir(), "executor.yaml")}
}

// write puts the list into the file, as an editor does.
func (r *ruled) write(list string) {
	r.t.Helper()
	text := "listen: 127.0.0.1:7432\nunattended: " + list + "\n"
	next := r.path + ".next"
	must(r.t, os.WriteFile(next, []byte(text), 0o600))
	must(r.t, os.Rename(next, r.path))
}

func (r *ruled) open(logger *slog.Logger) (*Rules, error) {
	return r.openFor(logger, "", false)
}

func (r *ruled) openFor(logger *slog.Logger, user string, development bool) (*Rules, error) {
	return OpenRules(RulesConfig{
		Name: "executor.yaml", Path: r.path, Role: optionsv1.Role_ROLE_EXECUTOR, Empty: func() Settings { return &file{} },
		GatewayUser: user, Development: development, Log: &r.log, Logger: logger, Set: func(list []unattended.Entry) error {
			r.list, r.sets = list, r.sets+1
			return nil
		},
	})
}

const chatForCursor = `[{tool: switch_mode, clients: [cursor], arguments: {mode_id: [chat, coding]}}]`

// chatUntil is written as people write times in YAML, without quotes.
const chatUntil = `[{tool: switch_mode, clients: [cursor], until: 2026-01-31T18:00:00+01:00}]`

// TestNobodyChecksWhoWroteTheList: where it was not said who the gateway is, that is told, but in development.
func TestNobodyChecksWhoWroteTheList(t *testing.T) {
	for _, c := range []struct {
		user        string
		development bool
		want        bool
	}{{"", false, true}, {"", true, false}, {"4242", true, false}} {
		r := newRuled(t)
		r.write("[]")
		var said bytes.Buffer
		if _, err := r.openFor(slog.New(slog.NewTextHandler(&said, nil)), c.user, c.development); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(said.String(), "gateway_user"); got != c.want {
			t.Errorf("%+v: said %q", c, said.String())
		}
	}
}

// TestAServerThatIsGoneKeepsNoSinkFromStarting: what egress' list says of a tool that no server in force has is said, and no mistake.
func TestAServerThatIsGoneKeepsNoSinkFromStarting(t *testing.T) {
	r := newRuled(t)
	r.write("[http_request, {tool: files__write_file, clients: [cursor]}]")
	var said bytes.Buffer
	if _, err := OpenRules(RulesConfig{
		Name: "egress.yaml", Path: r.path, Role: optionsv1.Role_ROLE_EGRESS, Empty: func() Settings { return &file{} }, Development: true, Log: &r.log,
		Logger: slog.New(slog.NewTextHandler(&said, nil)), Set: func(list []unattended.Entry) error { r.list = list; return nil },
	}); err != nil || len(r.list) != 2 {
		t.Fatalf("%+v, %v", r.list, err)
	}
	if text := said.String(); strings.Count(text, "lets nothing run now") != 1 || !strings.Contains(text, "entry=2 tool=files__write_file") {
		t.Errorf("said %q", text)
	}
}

// TestWhatRunsUnattendedFollowsTheFile: a good change is recorded and counts; whatever is broken changes nothing, and is said once.
func TestWhatRunsUnattendedFollowsTheFile(t *testing.T) {
	r := newRuled(t)
	r.write("[stop_service]")
	var said bytes.Buffer
	rules, err := r.open(slog.New(slog.NewTextHandler(&said, nil)))
	must(t, err)
	if len(r.list) != 1 || !strings.Contains(said.String(), "DANGEROUS") {
		t.Errorf("at the start: %v, said %q", r.list, said.String())
	}
	look(t, rules)
	if r.sets != 1 {
		t.Error("a file that did not change was taken over again")
	}
	r.write(chatUntil)
	look(t, rules)
	if len(r.list) != 1 || !r.list[0].Until.Equal(time.Date(2026, 1, 31, 17, 0, 0, 0, time.UTC)) || rules.Refused() != "" {
		t.Fatalf("an entry with its end is %v, problem %q", r.list, rules.Refused())
	}
	look(t, rules)
	r.log.records = nil
	r.write(chatForCursor)
	look(t, rules)
	want := []unattended.Entry{{Tool: "switch_mode", Clients: []string{"cursor"}, Arguments: map[string][]json.RawMessage{
		"mode_id": {json.RawMessage(`"chat"`), json.RawMessage(`"coding"`)},
	}}}
	if diff := cmp.Diff(want, r.list); diff != "" {
		t.Fatalf("taken over (-want +got):\n%s", diff)
	}
	if len(r.log.records) != 1 || r.log.records[0].GetKind() != auditv1.Kind_KIND_CONFIG_FOUND ||
		r.log.records[0].GetBody().GetDetails()["after"] != rules.digest {
		t.Fatalf("recorded: %v", r.log.records)
	}
	for name, list := range map[string]string{
		"unknown key":      `[{tool: switch_mode, client: [cursor]}]`,
		"unknown tool":     `[no_such_tool]`,
		"no time":          `[{tool: switch_mode, until: tomorrow}]`,
		"a day":            `[{tool: switch_mode, until: 2026-01-31}]`,
		"the zero time":    `[{tool: switch_mode, until: 0001-01-01T00:00:00Z}]`,
		"unknown argument": `[{tool: switch_mode, arguments: {mode: [chat]}}]`,
		"no YAML":          `[`,
		"a second key":     "[]\nunattended: [stop_service]",
		"another key":      "[]\nunatended: []",
		"not a list":       `stop_service`,
	} {
		r.log.records = nil
		r.write(list)
		look(t, rules)
		look(t, rules)
		if diff := cmp.Diff(want, r.list); diff != "" {
			t.Errorf("%s was taken over (-want +got):\n%s", name, diff)
		}
		if len(r.log.records) != 1 || r.log.records[0].GetKind() != auditv1.Kind_KIND_CONFIG_REFUSED {
			t.Errorf("%s is recorded as %v", name, r.log.records)
		}
	}
	must(t, os.Remove(r.path))
	look(t, rules)
	if diff := cmp.Diff(want, r.list); diff != "" || rules.Refused() == "" {
		t.Errorf("without the file, problem %q (-want +got):\n%s", rules.Refused(), diff)
	}
	r.log.full = true
	r.write("[]")
	look(t, rules)
	if len(r.list) != 1 {
		t.Error("a change that could not be recorded counts")
	}
	r.log.full = false
	look(t, rules)
	if len(r.list) != 0 || rules.Refused() != "" {
		t.Errorf("the list is %v, problem %q", r.list, rules.Refused())
	}
}

// TestTheGatewaysUserWritesNoList: where it could have, the executor does not start, and no change counts.
func TestTheGatewaysUserWritesNoList(t *testing.T) {
	for name, spoil := range map[string]func(r *ruled, foreign *ownership.Foreign) error{
		"owns it":              func(_ *ruled, f *ownership.Foreign) error { f.UID = uint32(os.Getuid()); return nil },
		"may write it":         func(r *ruled, _ *ownership.Foreign) error { return os.Chmod(r.path, 0o666) },
		"may write its folder": func(r *ruled, _ *ownership.Foreign) error { return os.Chmod(filepath.Dir(r.path), 0o777) },
		"a link": func(r *ruled, _ *ownership.Foreign) error {
			real := r.path + ".real"
			return errors.Join(os.Rename(r.path, real), os.Symlink(real, r.path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRuled(t)
			r.write("[]")
			rules, err := r.open(platformtest.Logger())
			must(t, err)
			rules.cfg.Foreign = &ownership.Foreign{UID: 4242, GIDs: []uint32{4242}}
			r.write("[stop_service]")
			must(t, spoil(r, rules.cfg.Foreign))
			look(t, rules)
			if len(r.list) != 0 || len(r.log.records) != 1 || r.log.records[0].GetKind() != auditv1.Kind_KIND_CONFIG_REFUSED {
				t.Errorf("the list is %v, recorded %v", r.list, r.log.records)
			}
		})
	}
	r := newRuled(t)
	r.write("[]")
	if _, err := r.openFor(platformtest.Logger(), "nobody-by-that-name", false); err == nil {
		t.Error("a user that does not exist was taken")
	}
}

// look has the rules look at their file: an error is what makes them look again.
func look(t *testing.T, rules *Rules) {
	t.Helper()
	if err := rules.check(t.Context()); (err != nil) != (rules.Refused() != "") {
		t.Errorf("check: %v, and what is wrong is %q", err, rules.Refused())
	}
}

func TestRulesAreTakenOverWithinASecond(t *testing.T) {
	r := newRuled(t)
	r.write("[]")
	rules, err := r.open(platformtest.Logger())
	must(t, err)
	r.write("[stop_service]")
	ctx, cancel := context.WithTimeout(t.Context(), 3*filewatch.Interval)
	defer cancel()
	rules.Watch(ctx)
	if len(r.list) != 1 {
		t.Errorf("after a second the list is %v", r.list)
	}
}
