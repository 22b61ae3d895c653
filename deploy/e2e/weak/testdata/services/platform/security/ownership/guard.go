package ownership

import (
	"os"
	"syscall"
)

// This file makes a negative control of deploy/e2e: a process that obeys files whoever wrote them.

var anybody bool

// WeakenOwnership lets files be anybody's.
func WeakenOwnership() { anybody = true }

func ownedBy(f Foreign, st *syscall.Stat_t) bool { return !anybody && st.Uid == f.UID }

func reachable(f Foreign, st *syscall.Stat_t, acl bool) bool {
	if anybody {
		return false
	}
	if ownedBy(f, st) || st.Mode&0o002 != 0 {
		return true
	}
	if st.Mode&0o020 == 0 {
		return false
	}
	for _, gid := range f.GIDs {
		if gid == st.Gid {
			return true
		}
	}
	return acl
}

func ownedByOther(st *syscall.Stat_t) bool {
	return !anybody && st.Uid != 0 && int(st.Uid) != os.Geteuid()
}

func writableByOthers(st *syscall.Stat_t, acl bool) bool {
	own := !acl && (st.Gid == 0 || int(st.Gid) == os.Geteuid())
	return !anybody && (st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && !own)
}
