package connlimit

import "net"

// counted returns a listener whose connections are counted by c, and have deadlines. A drill has the twin of this file in
// deploy/e2e/weak instead.
func counted(l net.Listener, c *Conns) net.Listener { return &listener{l, c} }
