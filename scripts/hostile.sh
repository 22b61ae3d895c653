#!/usr/bin/env bash
# Sends hostile strings and mutants of them to the built programs, through everything that takes a string, and counts effects,
# panics, and what the answers show; anything but 0 fails. CORPORA=DIR adds the strings of the corpora in that folder: a sample
# that the commit chooses, or with DURWARD_FULL=1 all of them. Arguments go to the test: `scripts/hostile.sh -seed 1 -mutants 1000`
# sends the same strings each time.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo 0)
arguments=(-seed "$((16#${commit:0:12}))" "$@")
if [ -n "${CORPORA:-}" ]; then
  [ -f "$CORPORA/MANIFEST.tsv" ] || { echo "CORPORA names no folder with corpora: there is no $CORPORA/MANIFEST.tsv" >&2; exit 1; }
  arguments+=(-corpora "$(cd "$CORPORA" && pwd)")
fi
cd deploy/e2e/hostile
GOGC=400 exec go test -tags hostile,grpcnotrace -count=1 -timeout 40m -args "${arguments[@]}"
