package install

import (
	"errors"
)

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
