package security_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"durward.internal/services/platform/security"
)

// stranger is the gateway's user; nothing on the host belongs to it.
func stranger() *security.Foreign { return &security.Foreign{UID: 61234, GIDs: []uint32{61234}} }

// What the gateway's user may write is no human's word: neither at the start nor later, and neither a file nor its folders.
func TestGatewayWritableIsRefused(t *testing.T) {
	for name, open := range map[string]string{"the folder": "", "a file": "security.yaml", "the policies' folder": "policy", "a policy": "policy/a.cedar"} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, map[string]string{"security.yaml": "approvals: {wait_s: 300}\n", "policy/a.cedar": forbid})
			must(t, os.Chmod(filepath.Join(dir, open), 0o777))
			options := security.Options{Dir: dir, Foreign: stranger()}
			if _, err := security.Open(options); err == nil || !strings.Contains(err.Error(), "the gateway's user may write") {
				t.Errorf("at the start: %v", err)
			}
			must(t, os.Chmod(filepath.Join(dir, open), 0o755))
			var told changes
			options.OnChange = told.add
			l, err := security.Open(options)
			must(t, err)
			defer l.Close()
			before := l.Current().Policies.Digest()
			told.take()
			must(t, os.Chmod(filepath.Join(dir, open), 0o777))
			// In place, so that owner and mode stay; and a rule more.
			must(t, os.WriteFile(filepath.Join(dir, "security.yaml"), []byte("approvals: {wait_s: 1800}\n"), 0))
			must(t, os.WriteFile(filepath.Join(dir, "policy/a.cedar"), []byte("// nothing\n"), 0))
			l.Reload()
			if l.Err() == nil {
				t.Fatal("nothing is said")
			}
			s := l.Current()
			if open != "policy" && open != "policy/a.cedar" && s.Values("", "").WaitS != 300 {
				t.Error("the settings changed")
			}
			if open != "security.yaml" && s.Policies.Digest() != before {
				t.Error("the rules changed")
			}
			refused := false
			for _, c := range told.take() {
				refused = refused || c.Problem != ""
			}
			if !refused {
				t.Error("nothing is told")
			}
		})
	}
}

// A folder that becomes a link, or a file, keeps what was in it in force.
func TestFolderSwappedForALink(t *testing.T) {
	dir := tree(t, map[string]string{"policy/a.cedar": forbid})
	elsewhere := tree(t, map[string]string{"a.cedar": "// nothing\n"})
	l, err := security.Open(security.Options{Dir: dir})
	must(t, err)
	defer l.Close()
	before := l.Current().Policies.Digest()
	policies := filepath.Join(dir, "policy")
	must(t, os.Rename(policies, policies+"~"))
	must(t, os.Symlink(elsewhere, policies))
	l.Reload()
	if l.Current().Policies.Digest() != before || l.Err() == nil || !strings.Contains(l.Err().Error(), "policy/: it is a symbolic link") {
		t.Errorf("%v", l.Err())
	}
	must(t, os.Remove(policies))
	must(t, os.WriteFile(policies, nil, 0o600))
	l.Reload()
	if l.Current().Policies.Digest() != before || l.Err() == nil || !strings.Contains(l.Err().Error(), "policy/: it is no folder") {
		t.Errorf("%v", l.Err())
	}
}

// Readers see one state or the other while files change.
func TestReadWhileFilesChange(t *testing.T) {
	dir := tree(t, map[string]string{"security.yaml": "approvals: {wait_s: 60}\n"})
	l, err := security.Open(security.Options{Dir: dir})
	must(t, err)
	defer l.Close()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n := l.Current().Values("cursor", "alice").WaitS; n != 60 && n != 120 {
					t.Errorf("%d", n)
					return
				}
				// Every third version is refused: its error is read for the race detector.
				_ = l.Err()
			}
		})
	}
	for i := range 50 {
		write(t, dir, "security.yaml", []string{"approvals: {wait_s: 120}\n", "approvals: {wait_s: 60}\n", "approvals: {"}[i%3])
		l.Reload()
	}
	close(stop)
	readers.Wait()
}

// FuzzSettings: whatever the file, it is refused with its name, or every value is within its bounds.
func FuzzSettings(f *testing.F) {
	for _, seed := range []string{"", "# x", "approvals: {wait_s: 60}", "tier_ceiling: READ\n", "a: &x 1", "approvals:\n  wait_s: !!int 60\n", "approvals: {wait_s: 6e1}", "desktop: {allowed: yes}"} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		state, err := security.Try(security.Options{Dir: dir}, map[string][]byte{"security.yaml": raw, "users/alice/security.yaml": raw})
		if err != nil {
			if !strings.Contains(err.Error(), "security.yaml") || strings.ContainsAny(err.Error(), "\x1b\r") {
				t.Fatalf("%q", err)
			}
			return
		}
		for _, s := range state.Settings("cursor", "alice") {
			if known, ok := security.Find(s.Name); !ok || known.Check(s.Value) != nil {
				t.Fatalf("%+v", s)
			}
		}
	})
}
