#!/usr/bin/env bash
# The suites against real parts: MCP clients from npm over HTTP and stdio, ssh-keygen on an approval as it is exported, promtool
# on alerts and metrics, and the official conformance suite. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-real.sh
CGO_ENABLED=0 go test -tags real -count=1 -p 1 -parallel 12 -v "$@" ./deploy/e2e/real/... ./deploy/e2e/conformance/...
