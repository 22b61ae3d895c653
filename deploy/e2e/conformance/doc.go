// Package conformance runs the official MCP conformance suite, as it is published on npm and pinned here, against the built
// programs: a real vault, executor and audit, and a gateway that was compiled with the files of overlay, which add the
// tools, prompts and resources that the suite looks for and nothing else. The suite knows no tokens: a proxy in front of the
// gateway adds one, and changes nothing besides.
//
// Its tests are compiled with the tag "real" alone, since they need what scripts/install-real.sh installs. `make
// conformance` runs both, and what is missing fails.
package conformance
