#!/usr/bin/env bash
# The official MCP conformance suite against the built programs, every revision; prints a line for each scenario.
# Arguments go to `go test`.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
scripts/install-real.sh conformance
go test -tags real,grpcnotrace -count=1 -v "$@" ./deploy/e2e/conformance/
