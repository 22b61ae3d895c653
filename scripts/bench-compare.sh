#!/usr/bin/env bash
# Measures reads through this checkout's programs and through those of the commit BASE in the same, interleaved rounds, and compares
# the two with benchstat. Processor time is what to look at on a machine that does other things too. Arguments go to the benchmark
# (-rounds 10). The figures stay in .cache/bench/COMMIT.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${BASE:?BASE=COMMIT says what to compare with}"
commit=$(git rev-parse --verify --quiet "$BASE^{commit}") || { echo "there is no commit $BASE" >&2; exit 1; }
kept=$PWD/.cache/bench/$commit
if [ ! -d "$kept/programs" ]; then
  source=$(mktemp -d)
  trap 'rm -rf "$source"' EXIT
  git archive "$commit" | tar -x -C "$source"
  (cd "$source" && CGO_ENABLED=0 go run ./deploy/e2e/cmd/programs plain >/dev/null)
  mkdir -p "$kept"
  mv "$source/.cache/e2e/plain" "$kept/programs"
fi
(cd deploy/e2e/bench && CGO_ENABLED=0 go test -tags bench -count=1 -timeout 60m -run TestBench/calls -args -writes 0 -base "$kept/programs" -out "$kept" "$@")
"$(scripts/tools.sh bench)/benchstat" -filter /server:durward "base=$kept/base.txt" "head=$kept/head.txt"
