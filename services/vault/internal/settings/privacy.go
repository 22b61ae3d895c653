package settings

import (
	"errors"
	"fmt"

	"durward.internal/services/platform/detect"
	"durward.internal/services/vault/internal/disclosure"
)

// Privacy is about personal data in what agents get. Credentials are replaced whatever it says.
type Privacy struct {
	// Off leaves personal data as it is. DANGER: what a service logs of its users then reaches agents, and the companies that run them.
	Off bool `yaml:"off"`
	// Types are the built-in types that become references. Optional; empty means DefaultTypes.
	Types []detect.Type `yaml:"types"`
	// Patterns are types of the operator's own, which become references too.
	Patterns []detect.Pattern `yaml:"patterns"`
	// Disclose says where values may go in the place of references, in calls that a human approves one by one. Empty: nowhere, but for
	// what an agent sent itself.
	Disclose []disclosure.Rule `yaml:"disclose"`
}

// DefaultTypes are what belongs to a person. What belongs to a machine is left to those who ask for it: an agent that looks after a host
// cannot work without its addresses.
func DefaultTypes() []detect.Type {
	return []detect.Type{
		detect.Email, detect.Phone, detect.CreditCard, detect.IBAN, detect.USSSN, detect.Crypto, detect.DateOfBirth, detect.Person, detect.Address,
	}
}

// Detector is what finds the personal data that becomes references; nil: none does.
func (p *Privacy) Detector() (*detect.Detector, error) {
	if p.Off {
		return nil, nil
	}
	d, err := detect.New(detect.Config{Types: p.types(), Patterns: p.Patterns})
	if err != nil {
		return nil, fmt.Errorf("privacy: %w", err)
	}
	return d, nil
}

// types are those of the file, or those that it need not name.
func (p *Privacy) types() []detect.Type {
	if len(p.Types) == 0 {
		return DefaultTypes()
	}
	return p.Types
}

// Names are the types that become references, the operator's own last.
func (p *Privacy) Names() (out []string) {
	if p.Off {
		return nil
	}
	for _, t := range p.types() {
		out = append(out, string(t))
	}
	for _, own := range p.Patterns {
		out = append(out, string(own.Type))
	}
	return out
}

// Validate reports what is wrong with it.
func (p *Privacy) Validate() error {
	if p.Off && len(p.Types)+len(p.Patterns) > 0 {
		return errors.New("privacy: off and types or patterns contradict each other: leave one out")
	}
	_, err := p.Detector()
	problems := []error{err}
	for i, rule := range p.Disclose {
		if err := rule.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("privacy.disclose[%d].%w", i, err))
		}
	}
	return errors.Join(problems...)
}
