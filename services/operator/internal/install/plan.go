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
	"time"

	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/trust"
)

// Verb says what a step does.
type Verb string

// What steps do. Same and Keep change nothing: Keep is for what a human has edited.
const (
	Make   Verb = "make"
	Change Verb = "change"
	Remove Verb = "remove"
	Run    Verb = "run"
	Same   Verb = "same"
	Keep   Verb = "keep"
)

// Step is one thing that an installation consists of.
type Step struct {
	Verb Verb `json:"verb"`
	// What is a path with its owner and mode, or a command line.
	What string `json:"what"`
	// Note says more, where there is more to say.
	Note string `json:"note,omitempty"`

	do func(ctx context.Context) (note string, err error)
	// restart means that running processes must be started again to heed it.
	restart bool
}

// Effect reports whether the step changes anything.
func (s Step) Effect() bool { return s.Verb != Same && s.Verb != Keep }

// Options say what is to be installed, and where.
type Options struct {
	Settings
	// Root is "/", or the folder of another host's root file system: an image's. There nothing is started.
	Root string
	// Programs is the folder with the built programs.
	Programs string
	// Operators are the Unix users who are to approve; root's own side is always made, without a right to approve.
	Operators []string
	// SigningKeys are OpenSSH key files that operators have already, by Unix user; others get a new one.
	SigningKeys map[string]string
	// Command runs a program of the host, found in its usual folders, and returns what it said where it failed.
	Command func(ctx context.Context, program string, args ...string) error
	// Join makes an operator's own side as that Unix user, and returns the public key, or ErrNoKey.
	Join func(ctx context.Context, who Member) (public []byte, err error)
	// Now is the clock.
	Now func() time.Time
}

// Member is somebody whose own side is to be made.
type Member struct {
	// Name is the Unix user's, Operator the name in approvals.
	Name, Operator string
	// UID, GID and Groups are what the user's program runs with, below Root.
	UID, GID int
	Groups   []int
	Home     string
	Root     string
	// SigningKey is a key file that the user has already; empty: a new one is made. Without is root's: none at all.
	SigningKey string
	Without    bool
}

// ErrNoKey means that an operator has no signing key, and nobody could be asked for a passphrase.
var ErrNoKey = errors.New("has no signing key yet")

// Plan is an installation as it is, and what is missing.
type Plan struct {
	Steps []Step

	opts   Options
	record Record
}

// Effects returns how many steps change anything.
func (p *Plan) Effects() int {
	n := 0
	for _, s := range p.Steps {
		if s.Effect() {
			n++
		}
	}
	return n
}

// New looks at the host and returns what is to be done. It changes nothing.
func New(opts Options) (*Plan, error) {
	if opts.Port < 1024 || opts.Port > 65535-healthOffset-3 {
		return nil, fmt.Errorf("port %d: use 1024 to %d", opts.Port, 65535-healthOffset-3)
	}
	if err := checkRoot(opts.Root); err != nil {
		return nil, err
	}
	if _, _, err := lookupGroup(opts.Root, "docker"); opts.Docker && err != nil {
		return nil, fmt.Errorf("the Docker Engine is not installed: %w", err)
	}
	record, err := ReadRecord(opts.Root)
	if err != nil {
		return nil, err
	}
	p := &Plan{opts: opts, record: record}
	p.record.Settings = opts.Settings
	for _, name := range opts.Operators {
		if name == "root" {
			return nil, errors.New("root cannot be an operator who approves: name the Unix user of a person")
		}
		if !slices.Contains(p.record.Operators, name) {
			p.record.Operators = append(p.record.Operators, name)
		}
	}
	for _, part := range []func() error{
		p.programs, p.users, p.folders, p.keys, p.configs, p.certificates, p.units, p.recorded, p.members, p.start,
	} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// checkRoot refuses a tree in which somebody else could lay a trap for what root is about to write.
func checkRoot(root string) error {
	info, err := os.Stat(root)
	switch {
	case !filepath.IsAbs(root):
		return errors.New("the root must be an absolute path")
	case err != nil:
		return fmt.Errorf("root: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%s is no folder", root)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to %s", root)
	}
	return nil
}

// Apply does what is missing, in order, and tells report of each step before the next one. It ends at the first failure; what
// was done by then stays, and another run goes on from there.
func (p *Plan) Apply(ctx context.Context, report func(Step)) error {
	if _, err := os.Stat("/run/systemd/system"); p.live() && err != nil {
		return errors.New("systemd does not run this host (sd_booted(3)): lay it out elsewhere with --root")
	}
	for _, s := range p.Steps {
		if s.Effect() {
			note, err := s.do(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", s.What, err)
			}
			if note != "" {
				s.Note = note
			}
		}
		report(s)
	}
	return nil
}

func (p *Plan) add(s ...Step) { p.Steps = append(p.Steps, s...) }

// on is where a path of the installed host lies.
func (p *Plan) on(path string) string { return filepath.Join(p.opts.Root, path) }

// live reports whether the host is the one that this program runs on.
func (p *Plan) live() bool { return p.opts.Root == "/" }

// run is a step that runs a program.
func (p *Plan) run(note string, argv ...string) Step {
	return Step{Verb: Run, What: strings.Join(argv, " "), Note: note, do: func(ctx context.Context) (string, error) {
		return "", p.opts.Command(ctx, argv[0], argv[1:]...)
	}}
}

// rooted gives a systemd program the root that it is to work on.
func (p *Plan) rooted(program string, args ...string) []string {
	if p.live() {
		return append([]string{program}, args...)
	}
	return append([]string{program, "--root=" + p.opts.Root}, args...)
}

func (p *Plan) programs() error {
	p.folder(programs, owner{}, 0o755)
	for _, name := range append(home.Roles(), "durward") {
		if err := p.program(filepath.Join(p.opts.Programs, name), programs+"/"+name); err != nil {
			return err
		}
	}
	target, err := os.Readlink(p.on(command))
	switch {
	case err == nil && target == "../lib/durward/durward":
		p.add(Step{Verb: Same, What: command})
	case errors.Is(err, fs.ErrNotExist):
		p.folder(filepath.Dir(command), owner{}, 0o755)
		p.add(Step{Verb: Make, What: command, Note: "a link to " + programs + "/durward", do: func(context.Context) (string, error) {
			return "", os.Symlink("../lib/durward/durward", p.on(command))
		}})
	default:
		p.add(Step{Verb: Keep, What: command, Note: "it is something else; the program is " + programs + "/durward"})
	}
	return nil
}

func (p *Plan) users() error {
	if err := p.managed("files/systemd/sysusers.conf", "/etc/sysusers.d/durward.conf"); err != nil {
		return err
	}
	missing, err := p.missingUsers()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		p.add(p.run("makes "+strings.Join(missing, ", "), p.rooted("systemd-sysusers", "durward.conf")...))
	}
	for _, name := range p.record.Operators {
		if err := p.membership(name); err != nil {
			return err
		}
	}
	return nil
}

// missingUsers are the users and groups of processes that are not there, and memberships.
func (p *Plan) missingUsers() ([]string, error) {
	var missing []string
	_, members, err := lookupGroup(p.opts.Root, Group)
	if errors.Is(err, errNoSuchGroup) {
		missing = append(missing, "group "+Group)
	} else if err != nil {
		return nil, err
	}
	if _, _, err := lookupGroup(p.opts.Root, Operators); errors.Is(err, errNoSuchGroup) {
		missing = append(missing, "group "+Operators)
	} else if err != nil {
		return nil, err
	}
	for _, role := range home.Roles() {
		_, err := lookupUser(p.opts.Root, User(role))
		switch {
		case errors.Is(err, errNoSuchUser):
			missing = append(missing, "user "+User(role))
		case err != nil:
			return nil, err
		case !slices.Contains(members, User(role)):
			missing = append(missing, User(role)+"'s membership")
		}
	}
	return missing, nil
}

// membership puts an operator into both groups.
func (p *Plan) membership(name string) error {
	if _, err := lookupUser(p.opts.Root, name); err != nil {
		return fmt.Errorf("operator %w", err)
	}
	for _, group := range []string{Group, Operators} {
		_, members, err := lookupGroup(p.opts.Root, group)
		if err != nil && !errors.Is(err, errNoSuchGroup) {
			return err
		}
		if !slices.Contains(members, name) {
			argv := []string{"usermod", "--append", "--groups", Group + "," + Operators, name}
			if !p.live() {
				argv = slices.Insert(argv, 1, "--root", p.opts.Root)
			}
			p.add(p.run("it counts from the next login of "+name+" on", argv...))
			return nil
		}
	}
	p.add(Step{Verb: Same, What: name + " is in the groups " + Group + " and " + Operators})
	return nil
}

func (p *Plan) folders() error {
	// Whoever is neither a process nor an operator reads nothing here, public or not.
	p.folder(etc, owner{group: Group}, 0o750)
	p.folder(trustDir, owner{}, 0o755)
	p.folder(pkiDir, owner{}, 0o700)
	p.folder(keysDir, owner{}, 0o700)
	p.folder(tlsDir, owner{}, 0o755)
	for _, role := range home.Roles() {
		p.folder(tlsDir+"/"+role, owner{group: User(role)}, 0o750)
	}
	p.folder(tlsDir+"/operators", owner{}, 0o755)
	for _, name := range append([]string{"root"}, p.record.Operators...) {
		p.folder(tlsDir+"/operators/"+home.OperatorName(name), owner{}, 0o755)
	}
	if err := p.managed("files/systemd/tmpfiles.conf", "/etc/tmpfiles.d/durward.conf"); err != nil {
		return err
	}
	for _, dir := range []string{runDir, stateDir} {
		for _, role := range home.Roles() {
			if _, err := os.Stat(p.on(dir + "/" + role)); err != nil {
				p.add(p.run("makes "+runDir+" and "+stateDir+", with a folder for each process",
					p.rooted("systemd-tmpfiles", "--create", "durward.conf")...))
				return nil
			}
		}
	}
	p.add(Step{Verb: Same, What: runDir + " and " + stateDir})
	return nil
}

func (p *Plan) configs() error {
	v := values{Settings: p.opts.Settings}
	for _, role := range home.Roles() {
		data, err := v.render(role)
		if err != nil {
			return err
		}
		if err := p.write(etc+"/"+role+".yaml", data, owner{}, 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"catalogue", "clients"} {
		if err := p.once(etc+"/"+name+".yaml", owner{}, 0o644, func() ([]byte, error) { return v.render(name) }); err != nil {
			return err
		}
	}
	return p.once(trustDir+"/"+trust.FileRevoked, owner{}, 0o644, func() ([]byte, error) { return v.render("revoked") })
}

// Units of systemd that are installed as they are.
func unitNames() []string {
	names := []string{"durward.target", "durward-renew.service", "durward-renew.timer"}
	for _, role := range home.Roles() {
		names = append(names, "durward-"+role+".service")
	}
	return names
}

func (p *Plan) units() error {
	for _, name := range unitNames() {
		if err := p.managed("files/systemd/"+name, unitsDir+"/"+name); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		wanted     bool
		file, unit string
	}{
		{p.opts.ProcessDriver, "executor-process.conf", "durward-executor.service"},
		{p.opts.Docker, "executor-docker.conf", "durward-executor.service"},
		{p.opts.HealthOnLoopback, "health-loopback.conf", "durward-audit.service"},
		{p.opts.HealthOnLoopback, "health-loopback.conf", "durward-vault.service"},
	} {
		path := unitsDir + "/" + d.unit + ".d/" + d.file
		if !d.wanted {
			p.unwanted(path)
			continue
		}
		p.folder(filepath.Dir(path), owner{}, 0o755)
		if err := p.managed("files/systemd/"+d.file, path); err != nil {
			return err
		}
	}
	return nil
}

// members makes what belongs into the home folders of root and of operators, and lets operators' keys approve.
func (p *Plan) members() error {
	if err := p.once(trustDir+"/"+trust.FileAllowedSigners, owner{}, 0o644, func() ([]byte, error) {
		return []byte("# Operators' signing keys (ssh-keygen(1), ALLOWED SIGNERS). Change it with `sudo durward operator`.\n"), nil
	}); err != nil {
		return err
	}
	for _, name := range append([]string{"root"}, p.record.Operators...) {
		if err := p.member(name); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) member(name string) error {
	who, err := lookupUser(p.opts.Root, name)
	if errors.Is(err, errNoSuchUser) && name == "root" {
		who, err = account{Name: "root", Home: "/root"}, nil
	}
	if err != nil {
		return err
	}
	operator := home.OperatorName(name)
	known, err := p.approves(operator)
	if err != nil {
		return err
	}
	side := filepath.Join(who.Home, ".durward")
	_, err = os.Stat(p.on(side + "/config/operator.yaml"))
	switch {
	case err == nil && (known || name == "root"):
		p.add(Step{Verb: Same, What: side})
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	note := operator + " may then approve"
	if name == "root" {
		note = "for sudo durward client and sudo durward operator; root approves nothing"
	}
	p.add(Step{Verb: Make, What: side, Note: note, do: func(ctx context.Context) (string, error) { return p.join(ctx, who, operator) }})
	return nil
}

// start enables the units and, on this host, starts what does not run or has changed.
func (p *Plan) start() error {
	units := unitNames()
	wanted := map[string]string{"durward.target": "multi-user.target", "durward-renew.timer": "timers.target"}
	var enable []string
	for _, name := range units {
		by := wanted[name]
		if strings.HasSuffix(name, ".service") && name != "durward-renew.service" {
			by = "durward.target"
		}
		if by == "" {
			continue
		}
		if _, err := os.Lstat(p.on(unitsDir + "/" + by + ".wants/" + name)); err != nil {
			enable = append(enable, name)
		}
	}
	changed := slices.ContainsFunc(p.Steps, func(s Step) bool { return s.restart && s.Effect() })
	if len(enable) > 0 {
		p.add(p.run("", append(p.rooted("systemctl", "enable"), enable...)...))
	}
	if !p.live() {
		return nil
	}
	active := p.opts.Command(context.Background(), "systemctl", "is-active", "--quiet", "durward.target") == nil
	switch {
	case changed || len(enable) > 0:
		// By name, so that systemctl waits for each: a target is there before what it wants has started again.
		restart := []string{"systemctl", "restart", "durward.target", "durward-renew.timer"}
		for _, role := range home.Roles() {
			restart = append(restart, "durward-"+role+".service")
		}
		p.add(p.run("", "systemctl", "daemon-reload"), p.run("", restart...))
	case !active:
		p.add(p.run("", "systemctl", "start", "durward.target", "durward-renew.timer"))
	default:
		p.add(Step{Verb: Same, What: "durward.target is active"})
	}
	return nil
}

// Health is where a process of the installation says whether it is well.
func (p *Plan) Health(role string) string { return values{Settings: p.opts.Settings}.AskHealth(role) }

// MCPURL is where agents connect.
func (p *Plan) MCPURL() string { return values{Settings: p.opts.Settings}.MCPURL() }
