package ownership

import (
	"strconv"
	"syscall"
)

// aclName is where POSIX access lists are kept.
const aclName = "system.posix_acl_access"

// hasACL reports whether an open file has an access list beyond its mode. The mode's group bits are then the most that
// anybody who is named there may do.
func hasACL(fd int) bool { return hasACLAt("/proc/self/fd/" + strconv.Itoa(fd)) }

func hasACLAt(path string) bool {
	n, err := syscall.Getxattr(path, aclName, nil)
	return err == nil && n > 0
}
