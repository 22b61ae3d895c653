package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"durward.internal/services/operator/internal/installdir"
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
	// Documents are completion files and manual pages of the program, by the absolute path at which each is installed. What else lies
	// beside one and is called durward-… is an earlier version's.
	Documents map[string][]byte
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
	aside  []string
	first  bool
	// misplaced have another owner or mode than they should.
	misplaced []Misplaced
	// packaged: programs, units and documents are the package's.
	packaged bool
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
	if opts.Port < 1024 || opts.Port > 65535-witnessOffset {
		return nil, fmt.Errorf("port %d: use 1024 to %d", opts.Port, 65535-witnessOffset)
	}
	if opts.Witness && !opts.Relay {
		return nil, errors.New("a witness without the relay sees no checkpoint: give --relay too, or --witness=false")
	}
	if err := checkTree(opts.Root); err != nil {
		return nil, err
	}
	if _, _, err := lookupGroup(opts.Root, "docker"); opts.Docker && !opts.Containers && err != nil {
		return nil, fmt.Errorf("the Docker Engine is not installed: %w", err)
	}
	record, err := ReadRecord(opts.Root)
	if err != nil {
		return nil, err
	}
	if record.Installed() && record.Containers != opts.Containers {
		return nil, errors.New("this host has an installation of the other kind, under systemd or in containers: two would share its keys and its history")
	}
	p := &Plan{opts: opts, record: record, first: !record.Installed()}
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
	parts := []func() error{
		p.checkPackage, p.programs, p.documents, p.users, p.folders, p.keys, p.configs, p.witness, p.certificates, p.units, p.firewall, p.recorded, p.members, p.start,
	}
	if opts.Containers {
		parts = []func() error{p.containers, p.keys, p.configs, p.certificates, p.recorded, p.members}
	}
	for _, part := range parts {
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
	if _, err := os.Stat("/run/systemd/system"); p.live() && !p.opts.Containers && err != nil {
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

// Health is where a process of the installation says whether it is well.
func (p *Plan) Health(role string) string { return p.values().AskHealth(role) }

// Serving are the processes that say whether they are well, in the order in which they start.
func (p *Plan) Serving() []string { return p.opts.serving() }

// values fill in the templates.
func (p *Plan) values() values { return values{Settings: p.opts.Settings} }

// people are the Unix users with a side of their own: root's first, who approves nothing.
func (p *Plan) people() []string { return append([]string{"root"}, p.record.Operators...) }

// Operators are the Unix users who approve.
func (p *Plan) Operators() []string { return slices.Clone(p.record.Operators) }

// Aside are the folders in which installations lie now that were in members' home folders before Apply.
func (p *Plan) Aside() []string { return slices.Clone(p.aside) }

// First reports whether nothing was installed when the plan was made.
func (p *Plan) First() bool { return p.first }

// Containers reports whether the processes run in containers, which others start.
func (p *Plan) Containers() bool { return p.opts.Containers }

// Address is the host and port at which agents connect.
func (p *Plan) Address() string { return p.values().loopback(0) }

// MCPURL is where agents connect.
func (p *Plan) MCPURL() string { return p.values().MCPURL() }

// containers makes the folders of an installation whose processes run in containers: in deploy/compose the service setup does, in an image
// that has the processes' users and nothing of systemd.
func (p *Plan) containers() error {
	if p.opts.ProcessDriver || p.opts.Relay || p.opts.Witness || p.opts.Firewall {
		return errors.New("--process-driver, --relay, --witness and --firewall are for a host whose processes systemd runs")
	}
	for _, role := range p.opts.serving() {
		if _, err := lookupUser(p.opts.Root, User(role)); err != nil {
			return errors.New("--containers is for the image of the service setup (deploy/compose), which has a user for each process")
		}
	}
	p.ownFolders()
	p.folder(runDir, owner{group: Group}, 0o710)
	for _, role := range p.opts.serving() {
		p.folder(runDir+"/"+role, owner{User(role), Group}, 0o710)
		p.folder(stateDir+"/"+role, owner{User(role), User(role)}, 0o700)
	}
	for _, name := range p.people() {
		if who, err := lookupUser(p.opts.Root, name); err == nil {
			p.folder(who.Home, owner{user: name}, 0o700)
		}
	}
	return nil
}

// InContainers reports whether the processes of this host's installation run in containers, to a user who may read that.
func InContainers() bool {
	record, err := ReadRecord("/")
	return err == nil && record.Containers
}

const (
	firewallUnit = "durward-firewall.service"
	firewallFile = etc + "/firewall.nft"
)

// firewall has the kernel refuse what reaches for a port of ours from elsewhere, and what processes without business elsewhere send there,
// in a table of its own. The units' IPAddressDeny says the same of each process; this holds where a process runs without its unit too.
func (p *Plan) firewall() error {
	if !p.opts.Firewall {
		p.off(firewallUnit, "multi-user.target")
		p.unwanted(firewallFile)
		return nil
	}
	if err := p.managed("files/systemd/"+firewallUnit, unitsDir+"/"+firewallUnit); err != nil {
		return err
	}
	return p.write(firewallFile, p.values().firewall(), owner{}, 0o644)
}

func (v values) firewall() []byte {
	var ports, users []string
	for _, offset := range []int{0, healthOffset, healthOffset + 1, healthOffset + 2, healthOffset + 3, healthOffset + 4, witnessOffset} {
		ports = append(ports, fmt.Sprint(v.Port+offset))
	}
	for _, role := range installdir.Roles() {
		users = append(users, `"`+User(role)+`"`)
	}
	return fmt.Appendf(nil, `# What reaches for Durward's ports from elsewhere is refused, and so is what these processes send elsewhere. durward install --firewall
# writes this file; %s loads it. Edit it where a process is to be reached, or reaches a database elsewhere:
# your version is kept. nft -f takes the whole file or nothing of it.
table inet durward
delete table inet durward
table inet durward {
	chain input {
		type filter hook input priority filter; policy accept;
		iif "lo" accept
		tcp dport { %s } counter reject with icmpx admin-prohibited
	}
	chain output {
		type filter hook output priority filter; policy accept;
		oif "lo" accept
		meta skuid { %s } counter reject with icmpx admin-prohibited
	}
}
`, firewallUnit, strings.Join(ports, ", "), strings.Join(users, ", "))
}
