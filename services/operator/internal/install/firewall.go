package install

import (
	"fmt"
	"strings"

	"durward.internal/services/operator/internal/installdir"
)

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
	return p.write(firewallFile, p.values().firewall())
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
