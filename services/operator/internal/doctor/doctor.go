// Package doctor looks for what makes an installation weaker than it should be, or keeps it from running, and says what to
// do. It only looks. It runs in the operator's process.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/health"
	"durward.internal/services/platform/procfs"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// Level says how bad a finding is.
type Level string

// The levels. Only Bad makes the examination fail.
const (
	Good    Level = "ok"
	Warning Level = "warning"
	Bad     Level = "bad"
)

// Finding is one line.
type Finding struct {
	Level Level  `json:"level"`
	Name  string `json:"name"`
	Text  string `json:"text"`
	// Do is what to do about it; empty when it is good.
	Do string `json:"do,omitempty"`
}

// Config is what is examined.
type Config struct {
	Home     installdir.Home
	Operator installdir.Config
	// Development: one user for everything is meant so.
	Development bool
	// Bin is the folder of the programs.
	Bin string
	// Version asks a server program for its version line.
	Version func(ctx context.Context, path string) (string, error)
	// Check asks a server program what is wrong with a configuration file and what it names; "": nothing. Nil: nobody is asked.
	Check func(ctx context.Context, path, file string) (string, error)
	// Taken says that a process cannot listen, and which program holds its port; nil: it can. It is nil itself while durward up runs: then
	// the processes hold them.
	Taken func(role string) error
	// Own is this program's version.
	Own string
	// HTTP asks health listeners; its timeout is the patience.
	HTTP *http.Client
	Now  func() time.Time
	// Root is the file system's root, "/" but in tests.
	Root string
	// Host is the GPU host.
	Host Host
	// Installed is what durward install laid out; nil where durward up runs the processes.
	Installed *Installed
	// Looking is told what is looked at next. May be nil.
	Looking func(what string)
}

// Examine looks at everything and returns what it found, in a fixed order.
func Examine(ctx context.Context, cfg Config) []Finding {
	var out []Finding
	for _, check := range []struct {
		what string
		look func(context.Context, Config) []Finding
	}{
		{"groups", groups}, {"users", users}, {"the gateway's user", gatewayUser}, {"permissions", permissions}, {"the signing key", signingKey},
		{"clients and operators", fourEyes}, {"processes", processes}, {"halts", halted}, {"deep checks", deep}, {"domains", domains},
		{"servers", servers}, {"clocks", clocks}, {"certificates", certificates}, {"the grant key", grantKey}, {"the package", packaged},
		{"owners and modes", misplaced}, {"units", units}, {"programs", binaries}, {"the processes' configuration", settings},
		{"drivers", drivers}, {"the catalogue", catalogFile}, {"GPUs", gpuSource}, {"systemd", systemd}, {"Docker", docker}, {"networks", network},
	} {
		if cfg.Looking != nil {
			cfg.Looking(check.what)
		}
		out = append(out, check.look(ctx, cfg)...)
	}
	return out
}

func good(name, format string, args ...any) Finding {
	return Finding{Level: Good, Name: name, Text: fmt.Sprintf(format, args...)}
}

// groups: who is in docker or sudo is root in all but name, whatever the approvals say.
func groups(context.Context, Config) []Finding {
	u, err := user.Current()
	if err != nil {
		return []Finding{{Warning, "groups", "your groups cannot be read", "Look yourself: id"}}
	}
	if u.Uid == "0" {
		return []Finding{{Warning, "groups", "you are root: so is every agent that runs as you", "Run agents as a user of their own."}}
	}
	ids, err := u.GroupIds()
	if err != nil {
		return []Finding{{Warning, "groups", "your groups cannot be read", "Look yourself: id"}}
	}
	var strong []string
	for _, id := range ids {
		if g, err := user.LookupGroupId(id); err == nil && slices.Contains([]string{"docker", "sudo", "wheel", "lxd", "podman", "libvirt"}, g.Name) {
			strong = append(strong, g.Name)
		}
	}
	if len(strong) > 0 {
		return []Finding{{Warning, "groups", "you are in " + strings.Join(strong, ", ") + ": an agent that runs as you can become root without asking Durward",
			"Run agents as a user of their own, without these groups."}}
	}
	return []Finding{good("groups", "you are in no group that amounts to root")}
}

// users: outside development an agent must not be the user that the processes run as.
func users(_ context.Context, cfg Config) []Finding {
	var same []string
	for _, role := range cfg.Operator.Roles() {
		if uid, ok := processUser(cfg, role); ok && uid == os.Getuid() {
			same = append(same, role)
		}
	}
	switch {
	case len(same) == 0 && bridged(cfg.Root, os.Getuid()):
		return []Finding{{Warning, "users", "an agent's bridge (durward mcp) runs as you: that agent reads logs and history with your certificate, and halts",
			"Run agents as a user who is no operator."}}
	case len(same) == 0:
		return []Finding{good("users", "no process of Durward runs as you")}
	case cfg.Development:
		return []Finding{{Warning, "users", "development: " + strings.Join(same, ", ") + " run as you; any program of yours can approve",
			"For real use give each process a user of its own. See SECURITY.md."}}
	default:
		return []Finding{{Bad, "users", strings.Join(same, ", ") + " run as you: an agent that runs as you can do everything that they can",
			"Give each process a user of its own. See SECURITY.md."}}
	}
}

// bridged reports whether a user runs a bridge, which an agent starts.
func bridged(root string, uid int) bool {
	proc := filepath.Join(root, "proc")
	for pid, line := range procfs.Processes(proc, "cmdline") {
		words := strings.Split(line, "\x00")
		if filepath.Base(words[0]) != "durward" || !slices.Contains(words[1:], "mcp") {
			continue
		}
		if owner, known := ownerOf(filepath.Join(proc, strconv.Itoa(pid), "cmdline")); known && owner == uid {
			return true
		}
	}
	return false
}

// processUser finds the user of a running process by its name and its configuration file on the command line.
func processUser(cfg Config, role string) (uid int, found bool) {
	proc := filepath.Join(cfg.Root, "proc")
	for pid, line := range procfs.Processes(proc, "cmdline") {
		if words := strings.Split(line, "\x00"); filepath.Base(words[0]) != role || !slices.Contains(words[1:], cfg.Home.Config(role)) {
			continue // an editor has the same file on its command line
		}
		if uid, found = ownerOf(filepath.Join(proc, strconv.Itoa(pid))); found {
			return uid, true
		}
	}
	return 0, false
}

// ownerOf is whose a file is, where that can be told.
func ownerOf(path string) (uid int, known bool) {
	var stat syscall.Stat_t
	err := syscall.Stat(path, &stat)
	return int(stat.Uid), err == nil
}

// gatewayUser: what the processes obey is beyond the gateway's user, whom each of their files names.
func gatewayUser(_ context.Context, cfg Config) []Finding {
	var unnamed []string
	for _, role := range []string{"audit", "vault", "executor", "egress"} {
		text, err := os.ReadFile(cfg.Home.Config(role))
		if err != nil {
			continue // it is not there, or not for this user to read
		}
		var file config.Guarded
		if err := yaml.Unmarshal(text, &file); err != nil {
			continue // its process says so
		}
		if file.GatewayUser == "" {
			unnamed = append(unnamed, role)
			continue
		}
		foreign, err := ownership.Lookup(file.GatewayUser)
		if err == nil {
			err = foreign.Refuse(cfg.Home.Config(role), cfg.Operator.TrustDir)
		}
		if err != nil {
			return []Finding{{Bad, "gateway user", role + ": " + clean.Line(err.Error(), 300), "Give the gateway a user of its own, and the files to root."}}
		}
	}
	if len(unnamed) > 0 && !cfg.Development {
		return []Finding{{Warning, "gateway user", "without gateway_user nobody checks whether the gateway could have written what " + strings.Join(unnamed, ", ") + " obey",
			"Name the gateway's Unix user in config/" + strings.Join(unnamed, ".yaml, config/") + ".yaml: gateway_user"}}
	}
	return nil
}

// permissions: nothing in the home folder is anybody else's business.
func permissions(_ context.Context, cfg Config) []Finding {
	var open []string
	// The separator: a home that is a symbolic link is the folder behind it.
	err := filepath.WalkDir(cfg.Home.Dir+string(filepath.Separator), func(path string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if errors.Is(err, fs.ErrNotExist) && filepath.Clean(path) != cfg.Home.Dir {
			return nil // processes write and remove files meanwhile
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o077 != 0 {
			if name, err := filepath.Rel(cfg.Home.Dir, path); err == nil {
				open = append(open, name)
			}
		}
		// What services write lies in the executor's state, and what other people's servers write, with copies of their programs, in egress';
		// it is theirs.
		if entry.IsDir() && (path == cfg.Home.State("executor") || path == filepath.Join(cfg.Home.State("egress"), "servers")) {
			return fs.SkipDir
		}
		// Packages are as their publishers made them, and nobody else's way leads to them.
		if entry.IsDir() && path == filepath.Join(cfg.Operator.ServersDir(), downstream.PackagesDir) {
			open = slices.DeleteFunc(open, func(name string) bool { return filepath.Join(cfg.Home.Dir, name) == path })
			return fs.SkipDir
		}
		return nil
	})
	switch {
	case err != nil:
		return []Finding{{Bad, "permissions", "the home folder cannot be read whole", "sudo chown -R \"$USER\" " + cli.ShellWord(cfg.Home.Dir)}}
	case len(open) > 0:
		shown := open[:min(len(open), 3)]
		return []Finding{{Bad, "permissions", fmt.Sprintf("others can read or write %s (%s)", clean.Count(len(open), "file or folder", "files or folders"), strings.Join(shown, ", ")),
			"chmod -R go= " + cli.ShellWord(cfg.Home.Dir)}}
	default:
		return []Finding{good("permissions", "nobody else can read or write %s", cfg.Home.Dir)}
	}
}

func signingKey(_ context.Context, cfg Config) []Finding {
	protected, err := signingkey.Protected(cfg.Operator.SigningKey)
	switch {
	case cfg.Installed != nil && cfg.Operator.Operator == "root":
		return nil // root approves nothing on an installed host
	case err != nil:
		return []Finding{{Bad, "signing key", "it cannot be read: " + cfg.Operator.SigningKey, "Name another one as signing_key in config/operator.yaml."}}
	case stranger(cfg):
		enter := "durward operator add "
		if cfg.Installed != nil {
			enter = "sudo " + enter
		}
		return []Finding{{Bad, "signing key", "what it signs counts for nothing: trust/" + trust.FileAllowedSigners + " does not hold it as " + clean.Visible(cfg.Operator.Operator) + "'s",
			"Name the right one as signing_key in config/operator.yaml; or have an operator let this one approve: " + enter + cli.ShellWord(cfg.Operator.Operator) + " KEYFILE.pub"}}
	case protected:
		return []Finding{good("signing key", "it asks for a passphrase, or a device holds it")}
	case cfg.Development:
		return []Finding{{Warning, "signing key", "development: it has no passphrase", "For real use: ssh-keygen -p -f " + cli.ShellWord(cfg.Operator.SigningKey)}}
	default:
		// While nothing runs nobody says that it is meant so; durward up takes it for development alone.
		return []Finding{{Bad, "signing key", "it has no passphrase: any program of yours can approve",
			"ssh-keygen -p -f " + cli.ShellWord(cfg.Operator.SigningKey) + cli.When(cfg.Taken != nil && cfg.Home.Runs(), "; or, to try things out: durward up --development")}}
	}
}

// stranger reports whether the signing key is in allowed_signers under another name or none. Where neither can be told it says no.
func stranger(cfg Config) bool {
	key := signingkey.Public(cfg.Operator.SigningKey)
	signers, err := trust.ReadAllowedSigners(cfg.Operator.TrustDir)
	if key == nil || err != nil {
		return false
	}
	signer, err := signers.Find(key, statement.Namespace, cfg.Now())
	return err != nil || signer.Operator != cfg.Operator.Operator
}

// clocks compares this clock with each process's, by the Date of its health listener.
func clocks(ctx context.Context, cfg Config) []Finding {
	worst, where := time.Duration(0), ""
	asked := 0
	for _, role := range cfg.Operator.Roles() {
		response, err := health.Ask(ctx, cfg.HTTP, cfg.Operator.Health.Of(role))
		if err != nil {
			continue
		}
		date := response.Header.Get("Date")
		if err := response.Body.Close(); err != nil {
			continue
		}
		at, err := http.ParseTime(date)
		if err != nil {
			continue
		}
		asked++
		if skew := cfg.Now().Sub(at).Abs(); skew > worst {
			worst, where = skew, role
		}
	}
	switch {
	case asked == 0:
		return []Finding{{Warning, "clock", "no process answers, so that clocks cannot be compared", cli.Start(cfg.Home)}}
	case worst > statement.Skew:
		return []Finding{{Bad, "clock", fmt.Sprintf("the clock of %s differs by %s: signatures will not be accepted", where, worst.Round(time.Second)), "Set the clocks (chrony, systemd-timesyncd)."}}
	case worst > 5*time.Second:
		return []Finding{{Warning, "clock", fmt.Sprintf("the clock of %s differs by %s", where, worst.Round(time.Second)), "Set the clocks (chrony, systemd-timesyncd)."}}
	default:
		return []Finding{good("clock", "the processes' clocks agree with this one")}
	}
}

func certificates(_ context.Context, cfg Config) []Finding {
	if _, err := trust.Read(cfg.Operator.TrustDir); err != nil { // no certificate is of use, and a new one neither
		return []Finding{{Bad, "trust", clean.Line(err.Error(), 300), cli.MendTrust(cfg.Operator.TrustDir)}}
	}
	now := cfg.Now()
	renew, keep := "durward cert renew, or put what your authority issues there", "durward cert renew, or keep durward up running"
	if cfg.Installed != nil {
		renew, keep = "sudo systemctl start durward-renew.service, or put what your authority issues there", "systemctl status durward-renew.timer; sudo systemctl start durward-renew.service"
	}
	if cfg.Installed != nil && cfg.Installed.Containers {
		renew, keep = "docker compose restart renew, or put what your authority issues there", "docker compose logs renew; docker compose restart renew"
	}
	var bad, late, ahead []string
	for _, c := range cfg.Home.Certificates() {
		switch {
		case c.NotBefore.After(now):
			ahead = append(ahead, c.Role)
		case c.Problem != "" || !now.Before(c.NotAfter):
			bad = append(bad, c.Role+" ("+cmp.Or(clean.Line(c.Problem, 300), "expired")+")")
		case now.After(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)):
			late = append(late, c.Role)
		}
	}
	switch {
	case len(ahead) > 0:
		return []Finding{{Bad, "certificates", "of the future, by this host's clock: " + strings.Join(ahead, ", "), "Set this host's clock (chrony, systemd-timesyncd); or, if it is right and was wrong when they were issued: " + renew}}
	case len(bad) > 0:
		return []Finding{{Bad, "certificates", "of no use: " + strings.Join(bad, ", "), renew}}
	case len(late) > 0:
		return []Finding{{Warning, "certificates", "due for renewal, and nobody renews them: " + strings.Join(late, ", "), keep}}
	default:
		return []Finding{good("certificates", "all are valid")}
	}
}

// grantKey looks at how long what the vault signs is accepted.
func grantKey(_ context.Context, cfg Config) []Finding {
	now := cfg.Now()
	key, err := installdir.ReadGrantKey(cfg.Operator.TrustDir, now)
	switch {
	case err != nil:
		return nil // certificates says that the trust folder cannot be read
	case key.Late:
		return []Finding{{Bad, "grant key", key.Sentence(now), cli.NextGrantKey(cfg.Home)}}
	case key.Due:
		return []Finding{{Warning, "grant key", key.Sentence(now), cli.NextGrantKey(cfg.Home)}}
	default:
		return []Finding{good("grant key", "%s", key.Sentence(now))}
	}
}

func binaries(ctx context.Context, cfg Config) []Finding {
	if cfg.Installed != nil && cfg.Installed.Containers {
		return nil // each is in its process's own image
	}
	var missing, other []string
	for _, role := range cfg.Operator.Roles() {
		line, err := cfg.Version(ctx, filepath.Join(cfg.Bin, role))
		switch {
		case err != nil:
			missing = append(missing, role)
		case line != role+" "+cfg.Own:
			other = append(other, line)
		}
	}
	switch {
	case len(missing) > 0:
		return []Finding{{Bad, "programs", "missing or not working beside durward: " + strings.Join(missing, ", "), "make build"}}
	case len(other) > 0:
		return []Finding{{Warning, "programs", "of another version than durward " + cfg.Own + ": " + strings.Join(other, ", "), "Install all of one release."}}
	default:
		return []Finding{good("programs", "all %s lie beside durward and are of its version", count(cfg))}
	}
}

// settings: what the processes would say of their files if they were started now. On an installed host they are root's to read.
func settings(ctx context.Context, cfg Config) (out []Finding) {
	if cfg.Installed != nil || cfg.Check == nil {
		return nil
	}
	if err := cfg.Home.Lost(); err != nil {
		out = append(out, Finding{Bad, "keys", err.Error(), "Put it back from a backup: a new one would be trusted by nobody."})
	}
	for _, role := range cfg.Operator.Roles() {
		wrong, err := cfg.Check(ctx, filepath.Join(cfg.Bin, role), cfg.Home.Config(role))
		if err != nil {
			return out // there is no such program: binaries says so
		}
		if wrong != "" {
			out = append(out, Finding{Bad, "configuration", wrong, "Correct it: " + role + " would not start with it."})
		}
	}
	if out == nil {
		out = []Finding{good("configuration", "the processes would start with their files as they are")}
	}
	return out
}

func drivers(_ context.Context, cfg Config) []Finding {
	if _, err := os.Stat(filepath.Join(cfg.Root, "proc/driver/nvidia/version")); err == nil {
		return []Finding{good("drivers", "the NVIDIA kernel driver is loaded")}
	}
	return []Finding{{Warning, "drivers", "no NVIDIA kernel driver is loaded: GPUs are those that the catalogue simulates", "Install the driver if this machine has NVIDIA GPUs."}}
}

// fourEyes looks for what nobody could approve where another human than the client's own has to: what clients ask that belong to
// nobody, and for operators whose name no client's user can have, so that nothing tells whose clients are theirs.
func fourEyes(_ context.Context, cfg Config) []Finding {
	if _, err := os.Stat(cfg.Operator.SecurityDir); err != nil {
		return nil // what is built in does not ask for it
	}
	state, _ := security.Look(security.Options{Dir: cfg.Operator.SecurityDir}, nil)
	list, err := client.Read(cfg.Operator.Clients)
	if state == nil || err != nil {
		return nil // the vault says what is wrong with its files
	}
	var without []string
	bound := false
	for _, c := range list {
		if c.Revoked || !state.Values(c.ID, c.User).FourEyes {
			continue
		}
		bound = true
		if c.User == "" {
			without = append(without, clean.Line(c.ID, 64))
		}
	}
	if !bound {
		return nil
	}
	var out []Finding
	if len(without) > 0 {
		out = append(out, Finding{Warning, "four eyes", "nobody can approve what " + strings.Join(without, ", ") + " ask: approvals.four_eyes is on, and they have no user",
			"Give each its user: in " + cfg.Operator.Clients})
	}
	var strange []string
	if signers, err := trust.ReadAllowedSigners(cfg.Operator.TrustDir); err == nil {
		for _, s := range signers.All() {
			if name := clean.Visible(s.Operator); security.CheckUser(s.Operator) != nil && !slices.Contains(strange, name) {
				strange = append(strange, name)
			}
		}
	}
	if len(strange) > 0 {
		out = append(out, Finding{Warning, "four eyes", "no client's user can be called like " + strings.Join(strange, ", ") +
			": approvals.four_eyes does not know which clients are theirs, and lets them approve their own", "Enter the key under a name of a-z, 0-9, _ and -: durward operator add"})
	}
	if len(out) == 0 {
		out = append(out, good("four eyes", "every client that needs another human's approval has a user"))
	}
	return out
}
