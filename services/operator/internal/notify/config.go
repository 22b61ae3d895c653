// Package notify tells an operator, where the operator is, that something waits for a decision: on the desktop, by ntfy, through a
// webhook of Slack, Mattermost or Discord, or through a command of the operator's own.
//
// It runs in durward-notify, a process of the operator's user with a certificate of its own role, which sees who waits for what and can
// do nothing else: no arguments, no agent's words and no operation's id reach it, and nothing that it holds approves. It trusts its
// configuration. Receivers are not trusted: what they answer is bounded, dropped and never shown, and the web's are dialled by
// platform/dialer alone.
package notify

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/pattern"
)

// Config is config/notify.yaml; deploy/config/notify.yaml documents every field.
type Config struct {
	// TrustDir is the folder of trust roots. Required, absolute.
	TrustDir string `yaml:"trust_dir"`
	// TLS is where the certificate of spiffe://TRUST_DOMAIN/notifier/OPERATOR comes from. Required.
	TLS config.OwnTLS `yaml:"tls"`
	// Vault is where the vault listens, and who it must prove to be. Required.
	Vault config.Peer `yaml:"vault"`
	// Durward are the addresses at which this installation listens, host:port: they are never dialled. Unix sockets need no mention.
	Durward []string `yaml:"durward"`
	// Command is how the operator calls durward, as notifications say it. Optional: "durward".
	Command string `yaml:"command"`
	// Gather is how long requests are gathered into one notification: 2 s unless told. Apart is the least time between two to one
	// destination: 30 s. AnHour is the most in an hour to one destination: 30.
	Gather time.Duration `yaml:"gather"`
	Apart  time.Duration `yaml:"apart"`
	AnHour int           `yaml:"an_hour"`
	// Quiet are the hours in which nothing is told, local time. What still waits at their end is told then.
	Quiet []Quiet `yaml:"quiet"`
	// Proxy is an HTTP proxy's address and port for web destinations. Optional.
	Proxy string `yaml:"proxy"`
	// Destinations are who is told. Required: one at least.
	Destinations []Destination `yaml:"destinations"`
}

// Quiet is a part of each day. To may be before From: it ends on the next day then.
type Quiet struct {
	From string `yaml:"from"`
	To   string `yaml:"to"`
	// Destructive lets a DESTRUCTIVE request through.
	Destructive bool `yaml:"destructive"`
}

// Destination is one receiver.
type Destination struct {
	// Name is what messages call it: a-z, 0-9, _ and -. Required.
	Name string `yaml:"name"`
	// Kind is desktop, ntfy, slack, mattermost, discord or command. Required.
	Kind string `yaml:"kind"`
	// URLFile holds the whole URL of a webhook or ntfy's topic, which is a secret: only its owner may read the file. Required for these.
	URLFile string `yaml:"url_file"`
	// TokenFile holds an access token, for ntfy. Optional.
	TokenFile string `yaml:"token_file"`
	// Local is the address and port of a receiver on this host or a private network. Optional: without it, it is on the public network.
	Local string `yaml:"local"`
	// Program is a command's absolute path and its arguments. Required for it.
	Program []string `yaml:"program"`
}

// Kinds of destinations.
const (
	KindDesktop    = "desktop"
	KindNtfy       = "ntfy"
	KindSlack      = "slack"
	KindMattermost = "mattermost"
	KindDiscord    = "discord"
	KindCommand    = "command"
)

var (
	kinds       = []string{KindCommand, KindDesktop, KindDiscord, KindMattermost, KindNtfy, KindSlack}
	namePattern = pattern.New(`^[a-z0-9][a-z0-9_-]{0,31}$`)
)

// Bounds of a configuration.
const (
	maxDestinations = 16
	maxQuiet        = 16
	maxArguments    = 32
	maxArgument     = 1 << 10
)

// Load reads and checks a configuration, the files of secrets too.
func Load(path string) (*Config, error) {
	c := &Config{}
	if err := config.Load(path, c); err != nil {
		return nil, err
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func (c *Config) validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	problems = append(problems, config.CheckAbsolute(map[string]string{"trust_dir": c.TrustDir}, nil))
	if err := c.TLS.Validate(); err != nil {
		problem("%w", err)
	} else if err := keyfile.Check(c.TLS.Key); err != nil {
		problem("tls.key: %w", err)
	}
	if err := c.Vault.Validate(); err != nil {
		problem("vault: %w", err)
	}
	for _, address := range c.Durward {
		if _, err := netip.ParseAddrPort(address); err != nil {
			problem("durward: %q is no address and port: 127.0.0.1:7430", address)
		}
	}
	c.Command = cmp.Or(c.Command, "durward")
	c.AnHour = cmp.Or(c.AnHour, 30)
	if c.Command != clean.Plain(c.Command) {
		problem("command: letters, digits, spaces and ./_:- alone")
	}
	for name, d := range map[string]*time.Duration{"gather": &c.Gather, "apart": &c.Apart} {
		if *d < 0 || *d > time.Hour {
			problem("%s: 0s to 1h", name)
		}
	}
	c.Gather, c.Apart = cmp.Or(c.Gather, 2*time.Second), cmp.Or(c.Apart, 30*time.Second)
	if c.AnHour < 1 || c.AnHour > 600 {
		problem("an_hour: 1 to 600")
	}
	if len(c.Quiet) > maxQuiet || len(c.Destinations) > maxDestinations {
		problem("at most %d quiet hours and %d destinations", maxQuiet, maxDestinations)
	}
	for i, q := range c.Quiet {
		from, err1 := timeOfDay(q.From)
		to, err2 := timeOfDay(q.To)
		if err1 != nil || err2 != nil || from == to {
			problem("quiet[%d]: from and to are two times of the day: \"22:00\" and \"07:00\"", i)
		}
	}
	if c.Proxy != "" {
		if _, err := netip.ParseAddrPort(c.Proxy); err != nil {
			problem("proxy: must be an address and port: 192.168.1.2:3128")
		}
	}
	if len(c.Destinations) == 0 {
		problem("destinations: there is none")
	}
	names := map[string]bool{}
	for i, d := range c.Destinations {
		if names[d.Name] {
			problem("destinations[%d].name: another one is called %s", i, d.Name)
		}
		names[d.Name] = true
		if _, err := c.sender(d); err != nil {
			problem("destinations[%d]: %w", i, err)
		}
	}
	return errors.Join(problems...)
}

// check looks at what a destination of its kind has and may not have.
func (d Destination) check() error {
	web := slices.Contains([]string{KindNtfy, KindSlack, KindMattermost, KindDiscord}, d.Kind)
	for _, c := range []struct {
		wrong bool
		why   string
	}{
		{!namePattern().MatchString(d.Name), "name: use a-z, 0-9, _ and -, at most 32"},
		{!slices.Contains(kinds, d.Kind), "kind: one of " + strings.Join(kinds, ", ")},
		{web && !filepath.IsAbs(d.URLFile), "url_file: the absolute path of a file with the URL"},
		{!web && (d.URLFile != "" || d.Local != ""), "url_file and local: not for this kind"},
		{d.TokenFile != "" && (d.Kind != KindNtfy || !filepath.IsAbs(d.TokenFile)), "token_file: an absolute path, and for ntfy alone"},
		{(d.Kind == KindCommand) != (len(d.Program) > 0), "program: for a command, and for nothing else"},
	} {
		if c.wrong {
			return errors.New(c.why)
		}
	}
	return nil
}

// sender makes what reaches a destination.
func (c *Config) sender(d Destination) (sender, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	switch d.Kind {
	case KindDesktop:
		return desktop{}, nil
	case KindCommand:
		return newCommand(d.Program)
	default:
		return c.web(d)
	}
}

// web makes a sender that posts to the URL in a destination's file.
func (c *Config) web(d Destination) (sender, error) {
	raw, err := secretFile(d.URLFile)
	if err != nil {
		return nil, fmt.Errorf("url_file: %w", err)
	}
	u, to, err := destination.ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("url_file: %w", err)
	}
	cfg := dialer.Config{Allow: destination.Only(to), Ports: []uint16{to.Port}, Own: c.own, Limits: dialer.Limits{Whole: sendTime, Body: maxAnswer}}
	switch {
	case d.Local != "":
		local, err := netip.ParseAddrPort(d.Local)
		if err != nil || local.Port() != to.Port {
			return nil, errors.New("local: must be the receiver's address, and the port of its URL")
		}
		cfg.Local, cfg.Ports = []netip.AddrPort{local}, []uint16{} // nothing else
	case u.Scheme != "https":
		return nil, errors.New("url_file: the URL must be https, so that nobody on the way reads it")
	case c.Proxy != "":
		if cfg.Upstream, err = netip.ParseAddrPort(c.Proxy); err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
	}
	w := &web{kind: d.Kind, url: u}
	if d.TokenFile != "" {
		if w.token, err = secretFile(d.TokenFile); err != nil {
			return nil, fmt.Errorf("token_file: %w", err)
		}
	}
	w.dialer, err = dialer.New(cfg)
	return w, err
}

// own reports whether an address is one of this installation's.
func (c *Config) own(to netip.AddrPort) bool {
	return slices.ContainsFunc(append([]string{c.Vault.Address}, c.Durward...), func(address string) bool {
		own, err := netip.ParseAddrPort(address)
		return err == nil && own.Port() == to.Port() && (own.Addr() == to.Addr() || own.Addr().IsUnspecified() || own.Addr().IsLoopback() && to.Addr().IsLoopback())
	})
}

// secretFile is the one line of a file that its owner alone may read. Its errors do not repeat it.
func secretFile(path string) (string, error) {
	raw, err := keyfile.Read(path)
	if err != nil {
		return "", err
	}
	line := strings.TrimRight(string(raw), "\r\n")
	if line == "" || strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", fmt.Errorf("%s: must hold one line without spaces", path)
	}
	return line, nil
}

// timeOfDay is a time of the day in minutes.
func timeOfDay(text string) (int, error) {
	t, err := time.Parse("15:04", text)
	return t.Hour()*60 + t.Minute(), err
}
