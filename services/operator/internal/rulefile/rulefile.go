// Package rulefile works out how the files that hold rules are to change: what runs unattended, and which projects are trusted. It
// writes nothing: what it returns is shown, signed and made by package signedchange.
//
// It runs in the operator's process, and trusts that the files are the operator's own.
package rulefile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/unattended"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/security"
)

// fileAllow is where rules are written that let calls run unattended.
const fileAllow = "allow.cedar"

// ErrNoRule means that no policy file holds a rule.
var ErrNoRule = errors.New("no policy file holds the rule")

// Rule is a rule by which calls of a tool run unattended, as package policy has written it.
type Rule struct {
	ID, Text, Client string
	Tool             contract.Tool
	Arguments        map[string][]string
	// Until is when it ends; zero: it does not.
	Until time.Time
}

// sink is a process that carries calls out, and its own file, with what runs unattended there.
type sink struct {
	role       optionsv1.Role
	path, file string
}

func sinks(cfg installdir.Config) []sink {
	return []sink{
		{optionsv1.Role_ROLE_EXECUTOR, cfg.ExecutorConfig, signedchange.FileExecutor},
		{optionsv1.Role_ROLE_EGRESS, cfg.EgressConfig(), signedchange.FileEgress},
	}
}

// Allow adds the rule, and its entry in the list of the sink that has the tool: one that only reads needs none. A rule that says the same with
// another end is replaced.
func Allow(cfg installdir.Config, r Rule) ([]*signedchange.Plan, error) {
	others := func(raw []byte) []string { return unattended.OtherEnds(raw, r.Client, r.Tool, r.Arguments, r.ID) }
	var replaced []string
	path, name := filepath.Join(cfg.SecurityDir, security.FolderPolicy, fileAllow), security.FolderPolicy+"/"+fileAllow
	plans, err := signedchange.PrepareOne(path, name, func(before []byte) (after []byte, err error) {
		replaced = others(before)
		for _, other := range replaced {
			if before, err = withoutRule(before, other); err != nil {
				return nil, err
			}
		}
		if edit.RuleLine(before, r.ID) > 0 {
			return before, nil
		}
		if before == nil {
			before = []byte("// What runs without asking, as `durward policy allow` wrote it; edit it by hand as well.\n")
		}
		if len(before) > 0 && !bytes.HasSuffix(before, []byte("\n")) {
			before = append(before, '\n')
		}
		if len(before) > 0 && !bytes.HasSuffix(before, []byte("\n\n")) {
			before = append(before, '\n')
		}
		return append(before, r.Text...), nil
	})
	own := slices.IndexFunc(sinks(cfg), func(s sink) bool { return s.role == r.Tool.Sink })
	if err != nil || r.Tool.Tier == optionsv1.Tier_TIER_READ || own < 0 {
		return plans, err
	}
	at := sinks(cfg)[own]
	listed, err := signedchange.PrepareOne(at.path, at.file, func(before []byte) ([]byte, error) {
		if before == nil {
			return nil, os.ErrNotExist
		}
		before, err := unattended.Without(before, append(replaced, others(before)...)...)
		if err != nil || unattended.Has(before, r.ID) {
			return before, err
		}
		return edit.Append(before, "unattended", unattended.Entry(r.Tool, r.Client, r.Arguments, r.ID, r.Until))
	})
	return append(plans, listed...), err
}

// Remove takes a rule out of the policy files, and its entry out of the sinks' lists. ErrNoRule: there is none.
func Remove(cfg installdir.Config, id string) ([]*signedchange.Plan, error) {
	files, err := cedarFiles(cfg)
	if err != nil {
		return nil, err
	}
	var plans []*signedchange.Plan
	// The sinks' lists first: what they refuse cannot run, whatever the rule that is left.
	for _, s := range sinks(cfg) {
		p, err := signedchange.Prepare(s.path, s.file, func(before []byte) ([]byte, error) {
			if before == nil {
				return nil, nil
			}
			return unattended.Without(before, id)
		})
		if err != nil {
			return nil, err
		}
		plans = append(plans, p)
	}
	for _, name := range files {
		p, err := signedchange.Prepare(filepath.Join(cfg.SecurityDir, filepath.FromSlash(name)), name, func(before []byte) ([]byte, error) {
			return withoutRule(before, id)
		})
		if err != nil {
			return nil, err
		}
		plans = append(plans, p)
	}
	if len(signedchange.Effective(plans)) == 0 {
		return nil, ErrNoRule
	}
	return plans, nil
}

// withoutRule is a policy file without a rule, which it need not hold.
func withoutRule(text []byte, id string) ([]byte, error) {
	after, err := edit.RemoveRule(text, id)
	if errors.Is(err, edit.ErrUnknown) {
		return text, nil
	}
	return after, err
}

// cedarFiles are the names of all policy files.
func cedarFiles(cfg installdir.Config) ([]string, error) {
	folder := os.DirFS(cfg.SecurityDir)
	system, err := fs.Glob(folder, "policy/*.cedar")
	users, userErr := fs.Glob(folder, "users/*/policy/*.cedar")
	return append(system, users...), errors.Join(err, userErr)
}
