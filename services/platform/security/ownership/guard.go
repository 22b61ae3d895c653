package ownership

import (
	"os"
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

// ownedByOther reports whether the owner is neither root nor this process's user.
func ownedByOther(st *syscall.Stat_t) bool { return st.Uid != 0 && int(st.Uid) != os.Geteuid() }

// writableByOthers reports whether anyone but root and this process's user may write it. A group of the user's own number is the
// user's own, and root's is root's, unless an access list makes the group's bits somebody else's.
func writableByOthers(st *syscall.Stat_t, acl bool) bool {
	own := !acl && (st.Gid == 0 || int(st.Gid) == os.Geteuid())
	return st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && !own
}
