package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/trust"
)

// TrustDir is where an installed host's trust roots lie: whose configuration names it belongs to an installation.
const TrustDir = trustDir

// revokes reports whether the operator of this name was revoked and is nobody's by now.
func (r Record) revokes(operator string) bool {
	is := func(user string) bool { return installdir.OperatorName(user) == operator }
	return slices.ContainsFunc(r.Revoked, is) && !slices.ContainsFunc(r.Operators, is)
}

// Knows reports whether there is anything below root that lets an operator of this name in.
func Knows(root, operator string) bool {
	_, err := os.Lstat(filepath.Join(root, tlsDir, "operators", operator))
	record, readErr := ReadRecord(root)
	return err == nil || readErr == nil && slices.ContainsFunc(record.Operators, func(user string) bool { return installdir.OperatorName(user) == operator })
}

// Identities are the SPIFFE IDs in the certificates of an operator: the operator's own, and that of what tells the operator.
func Identities(operator string) ([]string, error) {
	own, err := installdir.ProcessIdentity("operator", operator)
	if err != nil {
		return nil, err
	}
	tells, err := installdir.ProcessIdentity("notifier", operator)
	return []string{own.String(), tells.String()}, err
}

// Revoke undoes what an installation made for an operator: no later installation lets the person in again unless root names
// the user, no certificate is issued, and the user leaves the groups. The signing key in allowed_signers and the identity in
// revoked.yaml are the caller's to change, before. It may be called again after it failed.
func Revoke(ctx context.Context, root, operator string, run func(ctx context.Context, program string, args ...string) error) error {
	if err := checkTree(root); err != nil {
		return err
	}
	record, err := ReadRecord(root)
	if err != nil || !record.Installed() || operator == "root" {
		return err
	}
	p := &Plan{opts: Options{Root: root, Command: run}, record: record}
	var users []string
	for _, user := range append(slices.Clone(record.Operators), record.Revoked...) {
		if installdir.OperatorName(user) == operator {
			users = append(users, user)
		}
	}
	// First what lasts: whatever fails below, the person does not come back.
	p.record.Operators = slices.DeleteFunc(slices.Clone(record.Operators), func(user string) bool { return slices.Contains(users, user) })
	for _, user := range users {
		if !slices.Contains(p.record.Revoked, user) {
			p.record.Revoked = append(p.record.Revoked, user)
		}
	}
	if err := p.recorded(); err != nil {
		return err
	}
	for _, s := range p.Steps {
		if s.Effect() {
			if _, err := s.do(ctx); err != nil {
				return err
			}
		}
	}
	problems := []error{os.RemoveAll(p.on(tlsDir + "/operators/" + operator)), os.RemoveAll(p.on(tlsDir + "/notifiers/" + operator))}
	for _, user := range users {
		for _, group := range []string{Group, Operators} {
			_, members, err := lookupGroup(root, group)
			if err == nil && slices.Contains(members, user) {
				argv := []string{"--delete", user, group}
				if !p.live() {
					argv = append([]string{"--root", root}, argv...)
				}
				err = run(ctx, "gpasswd", argv...)
			}
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// revoked makes revoked.yaml, and takes those out of it again whom root has named as operators anew.
func (p *Plan) revoked(v values) error {
	path := trustDir + "/" + trust.FileRevoked
	raw, err := os.ReadFile(p.on(path))
	if err != nil {
		return p.once(path, owner{}, 0o644, func() ([]byte, error) { return v.render("revoked") })
	}
	after := raw
	for _, name := range p.opts.Operators {
		ids, err := Identities(installdir.OperatorName(name))
		if err != nil {
			return err
		}
		for _, id := range ids {
			if after, err = Readmit(after, id); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	if string(after) == string(raw) {
		return p.once(path, owner{}, 0o644, nil)
	}
	p.add(Step{Verb: Change, What: describe(path, owner{}, 0o644), Note: "operators are let in again: " + strings.Join(p.opts.Operators, ", "),
		do: func(context.Context) (string, error) { return "", p.put(path, after, owner{}, 0o644) }})
	return nil
}

// revokedKey is the list's name in revoked.yaml.
const revokedKey = "revoked"

// Ban adds an identity to the text of revoked.yaml, and Readmit takes it out. Comments and everything else stay.
func Ban(raw []byte, id string) ([]byte, error) {
	if edit.Has(raw, revokedKey, id) {
		return raw, nil
	}
	return edit.Append(raw, revokedKey, id)
}

// Readmit takes an identity out of the text of revoked.yaml.
func Readmit(raw []byte, id string) ([]byte, error) {
	after, err := edit.Remove(raw, revokedKey, func(item any, _ string) bool { return item == any(id) })
	if errors.Is(err, edit.ErrUnknown) {
		return raw, nil
	}
	return after, err
}

// checkTree refuses a host's tree in which somebody else than root, or than who calls, could lay a trap for what is about to be
// read and written: every folder of ours, as far as it is there, must be neither another's nor everybody's to write to, and in
// the tree of another host no link, which may lead out of it.
func checkTree(root string) error {
	if !filepath.IsAbs(root) {
		return errors.New("the root must be an absolute path")
	}
	info, err := os.Stat(root)
	switch {
	case err != nil:
		return fmt.Errorf("root: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%s is no folder", root)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to %s", root)
	}
	if err := ours(root, info); err != nil {
		return err
	}
	folders := []string{"/etc/passwd", "/etc/group", recordFile, trustDir, pkiDir, keysDir, tlsDir + "/operators", tlsDir + "/notifiers", tlsDir + "/tools", programs, PackagePrograms, filepath.Dir(command),
		"/etc/sysusers.d/durward.conf", "/etc/tmpfiles.d/durward.conf", stateDir, runDir, unitsDir}
	for _, role := range installdir.Roles() {
		folders = append(folders, tlsDir+"/"+role)
	}
	for _, dir := range []string{trustDir, pkiDir, keysDir, unitsDir, tlsDir + "/operators", tlsDir + "/notifiers", tlsDir + "/tools"} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			continue // not there yet; what cannot be read is refused where it is needed
		}
		for _, entry := range entries {
			// A unit itself may be a link, to /dev/null when it is masked: it is kept as it is.
			if dir != unitsDir || strings.HasPrefix(entry.Name(), "durward") && slices.Contains([]string{".d", ".wants"}, filepath.Ext(entry.Name())) {
				folders = append(folders, dir+"/"+entry.Name())
			}
		}
	}
	for _, dir := range folders {
		if err := checkWay(root, dir); err != nil {
			return err
		}
	}
	return nil
}

// checkWay looks at each part of a path below root.
func checkWay(root, path string) error {
	look := os.Lstat
	if root == "/" {
		look = os.Stat // links of this host's own root are the host's business
	}
	at := root
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		at = filepath.Join(at, part)
		info, err := look(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Mode().Type() == fs.ModeSymlink {
			return fmt.Errorf("%s is a link, which may lead out of %s", at, root)
		}
		if err := ours(at, info); err != nil {
			return err
		}
	}
	return nil
}

// ours refuses what belongs to somebody else than root or who calls, or is everybody's to write to.
func ours(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to neither root nor you", path)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("everybody may write to %s", path)
	}
	return nil
}
