// Package downstream is what a human said of other people's MCP servers: servers.yaml, which says how each runs and what it may, and
// servers.lock, which holds under the human's signature what each of their tools is. The vault, egress, the gateway and the operator's
// programs each read and verify their own copy; nothing that a server says at run time changes either.
//
// It trusts the operators' keys. Everything that came from a server is hostile: it is bounded, cleaned and linted before it is pinned.
package downstream

// PackagesDir is the folder beside the two files in which packages of npm are installed, each in its own (Package.Folder).
const PackagesDir = "packages"
