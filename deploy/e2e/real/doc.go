// Package real tests the built programs against parts that are not ours: MCP clients that nobody here wrote, from npm and the
// official Go SDK, in each era that they speak, over HTTP and stdio; and ssh-keygen on what a person signed. Its tests are
// compiled with the tag "real" alone, since they need what scripts/install-real.sh installs; `make real` runs both, and what
// is missing fails.
package real
