package installdir

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"syscall"
)

// AsUser is what a child of root's needs to be that user's own, with the group that may read the configuration.
func AsUser(name string) (*syscall.SysProcAttr, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("there is no Unix user %s", name)
	}
	groups, err := u.GroupIds()
	if shared, missing := user.LookupGroup("durward"); missing == nil {
		groups = append(groups, shared.Gid)
	}
	as := &syscall.Credential{}
	number := func(text string) uint32 {
		n, bad := strconv.ParseUint(text, 10, 32)
		err = errors.Join(err, bad)
		return uint32(n)
	}
	as.Uid, as.Gid = number(u.Uid), number(u.Gid)
	for _, group := range groups {
		as.Groups = append(as.Groups, number(group))
	}
	return &syscall.SysProcAttr{Credential: as}, err
}
