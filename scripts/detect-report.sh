#!/usr/bin/env bash
# Prints how much of a public corpus of personal data is found, what is missed, and how often services' logs raise a false alarm.
# CORPORA=DIR names the folder of the corpora; without it, only the logs are measured. MISSES=1 prints each value.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
cd services/platform/detect
exec go test -count=1 -run '^TestDetection$|^TestFalseAlarms$' -report ${MISSES:+-misses}
