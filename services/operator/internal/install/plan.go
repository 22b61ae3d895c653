package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	// First: nothing was installed when the plan was made.
	First bool
	// Operators are the Unix users who approve: those of the record who are users of the host.
	Operators []string
	// Aside are the folders in which installations lie now that were in members' home folders before Apply.
	Aside []string

	opts Options
	// before is the record as it was found, record as it will be.
	before, record Record
	// begins: what is about to be done is written down first.
	begins bool
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
	p := &Plan{opts: opts, before: record, record: record, First: !record.Installed()}
	p.record.Settings, p.record.Files, p.record.Former, p.record.RestartDue = opts.Settings, maps.Clone(record.Files), nil, false
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
	if err := p.present(); err != nil {
		return nil, err
	}
	parts := []func() error{p.checkPackage, p.programs, p.documents, p.users, p.folders, p.keys, p.configs, p.witness, p.certificates, p.units, p.firewall}
	last := []func() error{p.members, p.start}
	if opts.Containers {
		parts, last = []func() error{p.containers, p.keys, p.configs, p.certificates}, last[:1]
	}
	if p.First {
		parts = slices.Concat(parts, []func() error{p.recorded}, last)
	} else {
		parts = slices.Concat(parts, last, []func() error{p.recorded})
	}
	for _, part := range parts {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// present leaves out operators who are no users of the host now: one who has left, or whose directory does not answer, stops no upgrade. The
// record keeps them.
func (p *Plan) present() error {
	for _, name := range p.record.Operators {
		_, err := lookupUser(p.opts.Root, name)
		switch {
		case errors.Is(err, errNoSuchUser) && !slices.Contains(p.opts.Operators, name):
			p.add(Step{Verb: Keep, What: "operator " + name, Note: "there is no such Unix user. Where the person has left, key and certificate are still to be taken away: sudo durward operator revoke " +
				installdir.OperatorName(name)})
		case errors.Is(err, errNoSuchUser):
			return fmt.Errorf("operator %w. Name the Unix user of a person who is there, or make the user first: sudo useradd -m %s", err, name)
		case err != nil:
			return fmt.Errorf("operator %w", err)
		default:
			p.Operators = append(p.Operators, name)
		}
	}
	return nil
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
	if p.begins {
		if err := p.begun(); err != nil {
			return err
		}
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
func (p *Plan) people() []string { return append([]string{"root"}, p.Operators...) }

// Containers reports whether the processes run in containers, which others start.
func (p *Plan) Containers() bool { return p.opts.Containers }

// Address is the host and port at which agents connect.
func (p *Plan) Address() string { return p.values().loopback(0) }

// MCPURL is where agents connect.
func (p *Plan) MCPURL() string { return p.values().MCPURL() }
