package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/trust"
)

func (p *Plan) programs() error {
	if info, err := os.Stat(p.opts.Programs); err == nil && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("everybody may write to %s, the folder of the programs", p.opts.Programs)
	}
	if p.packaged {
		for _, name := range p.programNames() {
			if err := p.packageFile(PackagePrograms + "/" + name); err != nil {
				return err
			}
		}
		return nil
	}
	p.folder(programs, owner{}, 0o755)
	for _, name := range p.programNames() {
		if err := p.program(filepath.Join(p.opts.Programs, name), programs+"/"+name); err != nil {
			return err
		}
	}
	target, err := os.Readlink(p.on(command))
	switch {
	case err == nil && target == commandTarget:
		p.add(Step{Verb: Same, What: command})
	case errors.Is(err, fs.ErrNotExist):
		p.folder(filepath.Dir(command), owner{}, 0o755)
		p.add(Step{Verb: Make, What: command, Note: "a link to " + programs + "/durward", do: func(context.Context) (string, error) {
			return "", os.Symlink(commandTarget, p.on(command))
		}})
	default:
		p.add(Step{Verb: Keep, What: command, Note: "it is something else; the program is " + programs + "/durward"})
	}
	return nil
}

// programNames are the programs of this installation.
func (p *Plan) programNames() []string {
	names := append(installdir.Roles(), "durward", "durward-inspect", "durward-list", "durward-notify")
	for _, a := range p.opts.wanted() {
		names = append(names, a.program)
	}
	return names
}

func (p *Plan) users() error {
	if err := p.managed("files/systemd/sysusers.conf", "/etc/sysusers.d/durward.conf"); err != nil {
		return err
	}
	sysusers := []string{"durward.conf"}
	for _, a := range p.opts.additions() {
		name := "durward-" + a.role + ".conf"
		if !a.wanted {
			p.unwanted("/etc/sysusers.d/" + name)
			continue
		}
		if err := p.managed("files/systemd/sysusers-"+a.role+".conf", "/etc/sysusers.d/"+name); err != nil {
			return err
		}
		sysusers = append(sysusers, name)
	}
	missing, err := p.missingUsers()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		p.add(p.run("makes "+strings.Join(missing, ", "), p.rooted("systemd-sysusers", sysusers...)...))
	}
	for _, name := range p.Operators {
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
	for _, group := range []string{Operators, Tools} {
		if _, _, err := lookupGroup(p.opts.Root, group); errors.Is(err, errNoSuchGroup) {
			missing = append(missing, "group "+group)
		} else if err != nil {
			return nil, err
		}
	}
	roles := installdir.Roles()
	for _, a := range p.opts.wanted() {
		roles = append(roles, a.role)
	}
	inside := p.opts.connecting()
	for _, role := range roles {
		_, err := lookupUser(p.opts.Root, User(role))
		switch {
		case errors.Is(err, errNoSuchUser):
			missing = append(missing, "user "+User(role))
		case err != nil:
			return nil, err
		case slices.Contains(inside, role) && !slices.Contains(members, User(role)):
			missing = append(missing, User(role)+"'s membership")
		}
	}
	return missing, nil
}

// membership puts an operator into both groups.
func (p *Plan) membership(name string) error {
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

// ownFolders are those of /etc/durward.
func (p *Plan) ownFolders() {
	// Whoever is neither a process nor an operator reads nothing here, public or not.
	p.folder(etc, owner{group: Group}, 0o750)
	p.folder(trustDir, owner{}, 0o755)
	p.folder(securityDir, owner{}, 0o755)
	p.folder(securityDir+"/policy", owner{}, 0o755)
	p.folder(pkiDir, owner{}, 0o700)
	p.folder(keysDir, owner{}, 0o700)
	p.folder(tlsDir, owner{}, 0o755)
	for _, role := range p.opts.connecting() {
		p.folder(tlsDir+"/"+role, owner{group: User(role)}, 0o750)
	}
	p.folder(tlsDir+"/operators", owner{}, 0o755)
	for _, name := range p.people() {
		p.folder(tlsDir+"/operators/"+installdir.OperatorName(name), owner{}, 0o755)
	}
	p.folder(tlsDir+"/notifiers", owner{}, 0o755)
	for _, name := range p.Operators {
		p.folder(tlsDir+"/notifiers/"+installdir.OperatorName(name), owner{}, 0o755)
	}
}

func (p *Plan) folders() error {
	p.ownFolders()
	if err := p.managed("files/systemd/tmpfiles.conf", "/etc/tmpfiles.d/durward.conf"); err != nil {
		return err
	}
	tmpfiles := []string{"--create", "durward.conf"}
	for _, a := range p.opts.additions() {
		name := "durward-" + a.role + ".conf"
		switch {
		case !a.serves:
		case !a.wanted:
			p.unwanted("/etc/tmpfiles.d/" + name)
		default:
			if err := p.managed("files/systemd/tmpfiles-"+a.role+".conf", "/etc/tmpfiles.d/"+name); err != nil {
				return err
			}
			tmpfiles = append(tmpfiles, name)
		}
	}
	for _, dir := range []string{runDir, stateDir} {
		for _, role := range p.opts.serving() {
			if _, err := os.Stat(p.on(dir + "/" + role)); err != nil {
				p.add(p.run("makes "+runDir+" and "+stateDir+", with a folder for each process", p.rooted("systemd-tmpfiles", tmpfiles...)...))
				return nil
			}
		}
	}
	p.add(Step{Verb: Same, What: runDir + " and " + stateDir})
	return nil
}

func (p *Plan) configs() error {
	v := p.values()
	names, humans := installdir.Roles(), []string{securityDir + "/security", securityDir + "/tools"}
	if p.opts.Egress {
		names, humans = append(names, egress, installdir.Shared), append(humans, securityDir+"/domains")
	} else {
		p.unwanted(etc + "/" + egress + ".yaml")
		p.unwanted(etc + "/" + installdir.Shared + ".yaml")
	}
	if p.opts.launcher() {
		names = append(names, launcher)
	} else {
		p.unwanted(etc + "/" + launcher + ".yaml")
	}
	for _, name := range names {
		data, err := v.render(name)
		if err != nil {
			return err
		}
		if err := p.write(etc+"/"+name+".yaml", data); err != nil {
			return err
		}
	}
	humans = append(humans, etc+"/catalogue", etc+"/clients")
	if p.opts.Relay {
		humans = append(humans, etc+"/auditrelay")
	}
	for _, path := range humans {
		if err := p.once(path+".yaml", owner{}, 0o644, func() ([]byte, error) { return v.render(filepath.Base(path)) }); err != nil {
			return err
		}
	}
	return p.revoked(v)
}

// gatewaySocket holds the gateway's port while the gateway itself restarts.
const gatewaySocket = "durward-gateway.socket"

// services are the units of the processes that every installation has.
func services() (units []string) {
	for _, role := range installdir.Roles() {
		units = append(units, "durward-"+role+".service")
	}
	return units
}

func (p *Plan) units() error {
	others := []string{"durward.target", "durward-renew.service", "durward-renew.timer", "durward-backup.service", "durward-backup.timer", gatewaySocket}
	for _, name := range append(others, services()...) {
		if err := p.managed("files/systemd/"+name, unitsDir+"/"+name); err != nil {
			return err
		}
	}
	for _, a := range p.opts.additions() {
		if !a.wanted {
			p.off(a.unit(), a.wantedBy())
		} else if err := p.managed("files/systemd/"+a.unit(), unitsDir+"/"+a.unit()); err != nil {
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

// off ends a unit that a setting no longer asks for, and takes it away where it is not the package's.
func (p *Plan) off(unit, by string) {
	path := unitsDir + "/" + unit
	_, err := os.Lstat(p.on(path))
	_, enabled := os.Lstat(p.on(unitsDir + "/" + by + ".wants/" + unit))
	if (err == nil || p.packaged && enabled == nil) && p.live() {
		p.add(p.run("", "systemctl", "disable", "--now", unit))
	}
	p.unwanted(path)
}

// port has systemd hold the port that was chosen, in the place of the one in the unit as it is shipped.
func (p *Plan) port() error {
	path := unitsDir + "/" + gatewaySocket + ".d/port.conf"
	if p.opts.Port == DefaultPort {
		p.unwanted(path)
		return nil
	}
	p.folder(filepath.Dir(path), owner{}, 0o755)
	address := p.values().Listen("gateway")
	return p.write(path, []byte("[Socket]\nListenStream=\nListenStream="+address+"\n"))
}

// members makes what belongs into the home folders of root and of operators, and lets operators' keys approve.
func (p *Plan) members() error {
	if err := p.once(trustDir+"/"+trust.FileAllowedSigners, owner{}, 0o644, func() ([]byte, error) {
		return []byte("# Operators' signing keys (ssh-keygen(1), ALLOWED SIGNERS). Change it with `sudo durward operator`.\n"), nil
	}); err != nil {
		return err
	}
	for _, name := range p.people() {
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
	there, ours, lines, err := p.side(side + "/config/operator.yaml")
	unseen := p.First && errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0
	switch {
	case unseen: // The plan of a fresh host is for everybody to read; what is in root's home and another's is root's to see.
	case err != nil && (slices.Contains(p.opts.Operators, name) || errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0):
		return err
	case err != nil:
		// Its owner may lay there what they like, and keeps no upgrade of the host back by it.
		p.add(Step{Verb: Keep, What: side, Note: "it cannot be read: " + err.Error()})
		return nil
	case ours && (known || name == "root"):
		step := Step{Verb: Same, What: side}
		if stale := p.stale(lines); len(stale) > 0 {
			step = Step{Verb: Keep, What: side + "/config/operator.yaml", Note: "the processes are elsewhere now, and it has to name them: " + strings.Join(stale, ", ")}
		}
		p.add(step)
		return nil
	}
	note := operator + " may then approve"
	if name == "root" {
		note = "for sudo durward client and sudo durward operator; root approves nothing"
	}
	if there && !ours {
		note += "; what is there, an installation of its own, is set aside"
	}
	if unseen {
		note += "; what is there now can be seen by root alone"
	}
	p.add(Step{Verb: Make, What: side, Note: note, do: func(ctx context.Context) (string, error) { return p.join(ctx, who, operator) }})
	return nil
}

// side reports whether a user has an operator.yaml, and whether it is of this installation. Its owner may be anybody, so that it is
// not parsed here: one that only looks like another's is found to be ours by Join. A pipe is neither waited for nor read.
func (p *Plan) side(path string) (there, ours bool, lines []string, err error) {
	f, err := os.OpenFile(p.on(path), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, false, nil, nil
	case errors.Is(err, syscall.ELOOP):
		return true, true, nil, nil // a link is its owner's own arrangement, and stays
	case err != nil:
		return false, false, nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return true, false, nil, cmp.Or(err, fmt.Errorf("%s is no regular file", path))
	}
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	lines = strings.Split(string(text), "\n")
	return true, slices.Contains(lines, "trust_dir: "+trustDir), lines, err
}

// stale are the addresses of these settings of which a side of before names others. It is its owner's to edit.
func (p *Plan) stale(lines []string) (want []string) {
	for _, is := range [][2]string{{"mcp_url: ", p.MCPURL()}, {"  gateway: ", p.Health("gateway")}, {"  vault: ", p.Health("vault")}, {"  executor: ", p.Health("executor")}, {"  audit: ", p.Health("audit")}} {
		line := is[0] + is[1]
		if !slices.Contains(lines, line) && slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, is[0]) }) {
			want = append(want, strings.TrimSpace(line))
		}
	}
	return want
}

// start enables the units and, on this host, starts what does not run or has changed.
func (p *Plan) start() error {
	services := services()
	wantedBy := map[string]string{"durward.target": "multi-user.target", "durward-renew.timer": "timers.target"}
	for _, a := range p.opts.wanted() {
		services = append(services, a.unit())
		wantedBy[a.unit()] = a.wantedBy()
	}
	if p.opts.Firewall {
		services, wantedBy[firewallUnit] = append(services, firewallUnit), "multi-user.target"
	}
	var enable []string
	for _, name := range append([]string{"durward.target", "durward-renew.timer", gatewaySocket}, services...) {
		by := cmp.Or(wantedBy[name], "durward.target")
		if _, err := os.Lstat(p.on(unitsDir + "/" + by + ".wants/" + name)); err != nil {
			enable = append(enable, name)
		}
	}
	if len(enable) > 0 {
		p.add(p.run("", append(p.rooted("systemctl", "enable"), enable...)...))
	}
	if !p.live() {
		return nil
	}
	start := []string{"systemctl", "start", "durward.target"}
	if _, err := os.Lstat(p.on(unitsDir + "/timers.target.wants/durward-backup.timer")); err == nil {
		start = append(start, "durward-backup.timer") // which is a human's to enable, and stopped where the package was taken away meanwhile
	}
	switch {
	case p.restarts() || p.before.RestartDue || len(enable) > 0:
		// By name, so that systemctl waits for each: a target is there before what it wants has started again. The gateway's
		// port is let go only where it changes: in between another user could take it.
		restart := []string{"systemctl", "restart", "durward-renew.timer"}
		if slices.Contains(enable, gatewaySocket) || slices.ContainsFunc(p.Steps, func(s Step) bool {
			return s.restart && s.Effect() && strings.Contains(s.What, gatewaySocket)
		}) {
			restart = append(restart, gatewaySocket)
		}
		p.add(p.run("", "systemctl", "daemon-reload"), p.run("", append(restart, services...)...), p.run("", start...))
	case !slices.ContainsFunc(append([]string{"durward.target"}, services...), func(unit string) bool {
		return p.opts.Command(context.Background(), "systemctl", "is-active", "--quiet", unit) != nil
	}):
		p.add(Step{Verb: Same, What: "durward.target is active"})
	default:
		p.add(p.run("", append(append(start, "durward-renew.timer"), services...)...))
	}
	return nil
}
