#!/usr/bin/env bash
# Sends hostile strings and 100,000 mutants of them to the built programs, through everything that takes a string, and counts
# effects, panics, and what the answers show; anything but 0 fails. CORPORA=DIR adds every string of the corpora in that
# folder. Arguments go to the test: scripts/hostile.sh -mutants 1000 -seed 1
set -euo pipefail
cd "$(dirname "$0")/.."
arguments=("$@")
if [ -n "${CORPORA:-}" ]; then
  [ -f "$CORPORA/MANIFEST.tsv" ] || { echo "CORPORA names no folder with corpora: there is no $CORPORA/MANIFEST.tsv" >&2; exit 1; }
  arguments+=(-corpora "$(cd "$CORPORA" && pwd)")
fi
cd deploy/e2e/hostile
GOGC=400 CGO_ENABLED=0 exec go test -tags hostile -count=1 -timeout 40m -args "${arguments[@]}"
