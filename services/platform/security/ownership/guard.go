package ownership

import (
	"slices"
	"syscall"
)

// ownedBy reports whether the user owns it, and so may change its mode at any time.
func ownedBy(f Foreign, st *syscall.Stat_t) bool { return st.Uid == f.UID }

// reachable reports whether the user owns it or may write it. With an access list the group's bits may be anybody's.
func reachable(f Foreign, st *syscall.Stat_t, acl bool) bool {
	switch {
	case ownedBy(f, st), st.Mode&0o002 != 0:
		return true
	case st.Mode&0o020 != 0:
		return acl || slices.Contains(f.GIDs, st.Gid)
	}
	return false
}
