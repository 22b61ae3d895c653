#!/usr/bin/env bash
# Measures reads through this checkout's programs and through those of the commit BASE (the last one's parent) in the same, interleaved
# rounds, compares the two with benchstat, and fails where processor time or allocations of a read grew by more than GATE percent (10)
# beyond chance. Times of day are printed alone: they are the machine's as much as ours. Arguments go to the benchmark (-rounds 10).
# The figures stay in .cache/bench/COMMIT.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
base=${BASE:-HEAD^} gate=${GATE:-10}
commit=$(git rev-parse --verify --quiet "$base^{commit}") || { echo "there is no commit $base" >&2; exit 1; }
kept=$PWD/.cache/bench/$commit
mkdir -p "$kept"
programs=$(scripts/older.sh "$commit")
(cd deploy/e2e/bench && go test -tags bench,grpcnotrace -count=1 -timeout 60m -run TestBench/calls -args -rounds 6 -writes 0 -base "$programs" -out "$kept" "$@")
benchstat=("$(scripts/tools.sh bench)/benchstat" -filter /server:durward)
"${benchstat[@]}" "base=$kept/base.txt" "head=$kept/head.txt"
"${benchstat[@]}" -format csv "base=$kept/base.txt" "head=$kept/head.txt" 2>/dev/null >"$kept/compared.csv"
scripts/bench-gate.sh "$gate" "$kept/compared.csv"
