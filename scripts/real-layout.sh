#!/usr/bin/env bash
# Installs Durward (durward install --apply) in the sandbox of scripts/systemd-sandbox.sh, as on a host of its own, and lives with
# it: every process as its own user by its unit, an approved start, renewal, a killed process, and a program of the agent's user
# that tries what it can; then egress with another's MCP server, a witness, and a collector that the relay brings records to. Needs root, for the sandbox.
# PROGRAMS=DIR takes programs that are built already.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
. scripts/package.sh
package /usr/bin/ssh-agent openssh-client
package /usr/bin/curl curl
package /usr/bin/bwrap bubblewrap
package /usr/bin/pgrep procps
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # other users run what is in it
if [ -z "${PROGRAMS:-}" ]; then
  PROGRAMS=$work/bin shipped=.cache/e2e/shipped # where a test has them linked
  scripts/build.sh "$shipped"
  cp -r "$shipped" "$PROGRAMS"
fi
go build -o "$work/sameuser" ./deploy/e2e/drill/sameuser
go test -c -tags real,grpcnotrace -o "$work/layout.test" ./services/operator/internal/install
cp deploy/docs/production.md "$work/" # whose commands are typed
scripts/systemd-sandbox.sh -b env PROGRAMS="$PROGRAMS" GUIDE="$work/production.md" INTRUDER="$work/sameuser" "$work/layout.test" -test.v -test.run TestRealLayout -test.timeout 8m
