package limit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Rate is a token bucket: PerS are allowed a second in the long run, and Burst at once after a rest.
type Rate struct {
	// PerS is 0.1 to 100,000 a second; 0: the default of the bucket.
	PerS float64 `yaml:"per_s"`
	// Burst is 1 to 100,000; 0: the default of the bucket.
	Burst int `yaml:"burst"`
}

// Rates are the buckets of one principal.
type Rates struct {
	// Tools are calls that change something or wait for that, Reads are calls of READ tools, Resources are reading,
	// subscribing, which counts once for each resource, and completing, Lists are listing, discovering and opening sessions.
	// Default of each: 10 a second, burst 20.
	Tools     Rate `yaml:"tools"`
	Reads     Rate `yaml:"reads"`
	Resources Rate `yaml:"resources"`
	Lists     Rate `yaml:"lists"`
	// Messages are all that a principal sends, malformed ones and notifications too; one counts once, and once more for each
	// 16 KiB of it. Default: 50 a second, burst 100.
	Messages Rate `yaml:"messages"`
}

// Config says what one principal, and everybody together, may ask of the gateway. Zero values mean the defaults, which
// Validate fills in. deploy/config/gateway.yaml is the documented example.
type Config struct {
	Rates `yaml:",inline"`
	// Clients are principals with buckets of their own; what is 0 there is as for all.
	Clients map[string]Rates `yaml:"clients"`
	// Strangers are requests with a token that the vault has not yet accepted while this process runs, from everybody
	// together. What shows no token, or comes for another host or path, is answered at once as often as this too, and beyond
	// it slowly. Default: 10 a second, burst 20.
	Strangers Rate `yaml:"strangers"`
	// StrangersAtOnce is how many of them may be before the vault at a time, 1 to 64. Default 4.
	StrangersAtOnce int `yaml:"strangers_at_once"`
	// Principals is how many principals, and how many of their tokens, are remembered, 16 to 65,536. Default 4,096.
	Principals int `yaml:"principals"`
	// RequestsPerPrincipal is how many HTTP requests of a principal may be under way, streams among them, 1 to 4,096.
	// Default 64.
	RequestsPerPrincipal int `yaml:"requests_per_principal"`
	// CallsPerPrincipal is how many tool calls of a principal may be under way, 1 to 1,024. Default 32.
	CallsPerPrincipal int `yaml:"calls_per_principal"`
	// Connections is how many connections there may be, 16 to 65,536. Default 1,024. At the cap the oldest one that has
	// served no accepted client makes room.
	Connections int `yaml:"connections"`
	// ConnectionsPerPrincipal is how many a principal may have, 1 to 65,536. Default 64.
	ConnectionsPerPrincipal int `yaml:"connections_per_principal"`
	// ConnectionsOfStrangers is how many may be open that have served no accepted client, 1 to 65,536. Default 256.
	ConnectionsOfStrangers int `yaml:"connections_of_strangers"`
	// RefusalDelayMS is how many milliseconds, and up to half as many more, a refusal for a limit or a token is held back, 1 to
	// 2,000. Default 200: a client that asks again at once then costs next to nothing.
	RefusalDelayMS int `yaml:"refusal_delay_ms"`
}

// Of returns the buckets of a principal. The Config must be valid.
func (c *Config) Of(principal string) Rates {
	if own, ok := c.Clients[principal]; ok {
		return own
	}
	return c.Rates
}

// Validate fills in the defaults and reports every value that is out of bounds.
func (c *Config) Validate() error {
	ten := Rate{10, 20}
	problems := c.validate("limits", Rates{Tools: ten, Reads: ten, Resources: ten, Lists: ten, Messages: Rate{50, 100}})
	problems = append(problems, c.Strangers.validate("limits.strangers", ten)...)
	clients := make(map[string]Rates, len(c.Clients))
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		own := c.Clients[name]
		problems = append(problems, own.validate("limits.clients."+name, c.Rates)...)
		clients[name] = own
	}
	c.Clients = clients
	problems = append(problems, Fill("limits.", []Number{
		{"strangers_at_once", &c.StrangersAtOnce, 4, 1, 64},
		{"principals", &c.Principals, 4096, 16, 1 << 16},
		{"requests_per_principal", &c.RequestsPerPrincipal, 64, 1, 4096},
		{"calls_per_principal", &c.CallsPerPrincipal, 32, 1, 1024},
		{"connections", &c.Connections, 1024, 16, 1 << 16},
		{"connections_per_principal", &c.ConnectionsPerPrincipal, 64, 1, 1 << 16},
		{"connections_of_strangers", &c.ConnectionsOfStrangers, 256, 1, 1 << 16},
		{"refusal_delay_ms", &c.RefusalDelayMS, 200, 1, 2000},
	})...)
	return errors.Join(problems...)
}

// Number is a whole number of the configuration, with its default and its bounds.
type Number struct {
	Name               string
	Value              *int
	Standard, Low, Top int
}

// Fill fills in the defaults and returns what is out of bounds, by its name behind the name of what it is in.
func Fill(in string, numbers []Number) (problems []error) {
	for _, n := range numbers {
		*n.Value = cmp.Or(*n.Value, n.Standard)
		if *n.Value < n.Low || *n.Value > n.Top {
			problems = append(problems, fmt.Errorf("%s%s: must be %d to %d", in, n.Name, n.Low, n.Top))
		}
	}
	return problems
}

func (r *Rates) validate(name string, standard Rates) []error {
	return slices.Concat(
		r.Tools.validate(name+".tools", standard.Tools), r.Reads.validate(name+".reads", standard.Reads),
		r.Resources.validate(name+".resources", standard.Resources), r.Lists.validate(name+".lists", standard.Lists),
		r.Messages.validate(name+".messages", standard.Messages))
}

func (r *Rate) validate(name string, standard Rate) []error {
	r.PerS = cmp.Or(r.PerS, standard.PerS)
	r.Burst = cmp.Or(r.Burst, standard.Burst)
	var problems []error
	if math.IsNaN(r.PerS) || r.PerS < 0.1 || r.PerS > maxRate {
		problems = append(problems, fmt.Errorf("%s.per_s: must be 0.1 to %d", name, maxRate))
	}
	if r.Burst < 1 || r.Burst > maxRate {
		problems = append(problems, fmt.Errorf("%s.burst: must be 1 to %d", name, maxRate))
	}
	return problems
}

// maxRate bounds rates and bursts.
const maxRate = 100_000

// RefusalDelay is how long a refusal for a limit or a token is held back.
func (c *Config) RefusalDelay() time.Duration {
	return time.Duration(c.RefusalDelayMS) * time.Millisecond
}
