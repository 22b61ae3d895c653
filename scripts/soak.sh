#!/usr/bin/env bash
# Half an hour of fuzzing of what reads model files, and the switch drill 20 times over: `SOAK=5 scripts/soak.sh 'host-killed.*'`
# says how often, and which lines. It takes hours.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
FUZZTIME=${FUZZTIME:-15m} scripts/fuzz.sh services/inspector
cd deploy/e2e/drill
export SOAK="${SOAK:-20}"
exec go test -tags drill,grpcnotrace -count=1 -timeout 12h -run TestDrillHost -args -worlds "${WORLDS:-8}" -lines "${1:-^host-}"
