#!/usr/bin/env bash
# The systemd driver, the units that `durward service install` renders, what `durward catalog import systemd` finds and the rule for
# polkit, against a real systemd with journald, the system bus and polkitd in a sandbox of their own (scripts/systemd-sandbox.sh).
# Needs root and Go. Arguments go to the test programs (-test.run=TestRealLogs).
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
export POLKIT_RULE=$PWD/deploy/systemd/polkit/60-durward.rules
work=$(mktemp -d /tmp/real-systemd.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
chmod 755 "$work" # units run the test programs as other users
go test -tags real,grpcnotrace -c -o "$work/driver.test" ./services/executor/internal/driver/systemd
go test -tags real,grpcnotrace -c -o "$work/unit.test" ./services/operator/internal/unit
go test -tags real,grpcnotrace -c -o "$work/found.test" ./services/operator/internal/importer/discover
for part in driver unit found; do
  scripts/systemd-sandbox.sh -b "$work/$part.test" -test.v -test.count=1 -test.timeout=5m -test.run=Real "$@"
done
