#!/usr/bin/env bash
# The switch drill, 20 times over: `SOAK=5 scripts/soak.sh 'host-killed.*'` says how often, and which lines. It takes hours.
set -euo pipefail
cd "$(dirname "$0")/../deploy/e2e/drill"
export SOAK="${SOAK:-20}"
exec go test -tags drill -count=1 -timeout 12h -run TestDrillHost -args -lines "${1:-^host-}"
