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

	"durward.internal/services/operator/internal/installdir"
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
	// Join makes an operator's own side as that Unix user, and returns the key, or ErrNoKey.
	Join func(ctx context.Context, who Member) (Key, error)
	// Accept asks root whether a key may approve that came back from Join and that root has not named: the operator's other
	// programs run as that user too, and may have put it there. ErrNoKey: nobody could be asked, or the answer is no.
	Accept func(ctx context.Context, who Member, key Key, fingerprint string) error
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
	if err := checkTree(opts.Root); err != nil {
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
		p.record.Revoked = slices.DeleteFunc(p.record.Revoked, func(n string) bool { return n == name })
	}
	if err := distinct(p.record.Operators); err != nil {
		return nil, err
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

// distinct refuses two Unix users who would share a name in approvals, and with it a certificate.
func distinct(users []string) error {
	names := map[string]string{"root": "root"}
	for _, user := range users {
		operator := installdir.OperatorName(user)
		if other, taken := names[operator]; taken && other != user {
			return fmt.Errorf("%s and %s would both be the operator %s: rename one of the Unix users", other, user, operator)
		}
		names[operator] = user
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
	if info, err := os.Stat(p.opts.Programs); err == nil && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("everybody may write to %s, the folder of the programs", p.opts.Programs)
	}
	p.folder(programs, owner{}, 0o755)
	for _, name := range append(installdir.Roles(), "durward", "durward-inspect") {
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
	for _, role := range installdir.Roles() {
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
	p.folder(securityDir, owner{}, 0o755)
	p.folder(securityDir+"/policy", owner{}, 0o755)
	p.folder(pkiDir, owner{}, 0o700)
	p.folder(keysDir, owner{}, 0o700)
	p.folder(tlsDir, owner{}, 0o755)
	for _, role := range installdir.Roles() {
		p.folder(tlsDir+"/"+role, owner{group: User(role)}, 0o750)
	}
	p.folder(tlsDir+"/operators", owner{}, 0o755)
	for _, name := range append([]string{"root"}, p.record.Operators...) {
		p.folder(tlsDir+"/operators/"+installdir.OperatorName(name), owner{}, 0o755)
	}
	if err := p.managed("files/systemd/tmpfiles.conf", "/etc/tmpfiles.d/durward.conf"); err != nil {
		return err
	}
	for _, dir := range []string{runDir, stateDir} {
		for _, role := range installdir.Roles() {
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
	for _, role := range installdir.Roles() {
		data, err := v.render(role)
		if err != nil {
			return err
		}
		if err := p.write(etc+"/"+role+".yaml", data, owner{}, 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"security", "tools"} {
		if err := p.once(securityDir+"/"+name+".yaml", owner{}, 0o644, func() ([]byte, error) { return v.render(name) }); err != nil {
			return err
		}
	}
	for _, name := range []string{"catalogue", "clients"} {
		if err := p.once(etc+"/"+name+".yaml", owner{}, 0o644, func() ([]byte, error) { return v.render(name) }); err != nil {
			return err
		}
	}
	return p.revoked(v)
}

// gatewaySocket holds the gateway's port while the gateway itself restarts.
const gatewaySocket = "durward-gateway.socket"

// Units of systemd that are installed as they are.
func unitNames() []string {
	names := []string{"durward.target", "durward-renew.service", "durward-renew.timer", gatewaySocket}
	for _, role := range installdir.Roles() {
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
	if err := p.port(); err != nil {
		return err
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

// port has systemd hold the port that was chosen, in the place of the one in the unit as it is shipped.
func (p *Plan) port() error {
	path := unitsDir + "/" + gatewaySocket + ".d/port.conf"
	if p.opts.Port == DefaultPort {
		p.unwanted(path)
		return nil
	}
	p.folder(filepath.Dir(path), owner{}, 0o755)
	address := values{Settings: p.opts.Settings}.Listen("gateway")
	return p.write(path, []byte("[Socket]\nListenStream=\nListenStream="+address+"\n"), owner{}, 0o644)
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
	operator := installdir.OperatorName(name)
	known, err := p.approves(operator)
	if err != nil {
		return err
	}
	if !known && name != "root" && !slices.Contains(p.opts.Operators, name) {
		// Whose key is not there was never let in, or root took it out: nothing puts it in but root's word.
		p.add(Step{Verb: Keep, What: operator + " cannot approve", Note: "sudo durward operator add " + operator + " KEYFILE.pub, or --operator " + name})
		return nil
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
		if name == gatewaySocket || strings.HasSuffix(name, ".service") && name != "durward-renew.service" {
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
		// By name, so that systemctl waits for each: a target is there before what it wants has started again. The gateway's
		// port is let go only where it changes: in between another user could take it.
		restart := []string{"systemctl", "restart", "durward-renew.timer"}
		if slices.Contains(enable, gatewaySocket) || slices.ContainsFunc(p.Steps, func(s Step) bool {
			return s.restart && s.Effect() && strings.Contains(s.What, gatewaySocket)
		}) {
			restart = append(restart, gatewaySocket)
		}
		for _, role := range installdir.Roles() {
			restart = append(restart, "durward-"+role+".service")
		}
		p.add(p.run("", "systemctl", "daemon-reload"), p.run("", restart...), p.run("", "systemctl", "start", "durward.target"))
	case !active:
		p.add(p.run("", "systemctl", "start", "durward.target", "durward-renew.timer"))
	default:
		p.add(Step{Verb: Same, What: "durward.target is active"})
	}
	return nil
}

// Health is where a process of the installation says whether it is well.
func (p *Plan) Health(role string) string { return values{Settings: p.opts.Settings}.AskHealth(role) }

// Operators are the Unix users who approve.
func (p *Plan) Operators() []string { return slices.Clone(p.record.Operators) }

// MCPURL is where agents connect.
func (p *Plan) MCPURL() string { return values{Settings: p.opts.Settings}.MCPURL() }
