#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME each (10s unless told; `make soak` gives the model readers 15 min); crashes are written to testdata/ and fail.
# Arguments are folders: `FUZZTIME=60s scripts/fuzz.sh services/inspector` runs those below it.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
time=${FUZZTIME:-10s}
said=$(mktemp)
trap 'rm -f "$said"' EXIT
[ $# -gt 0 ] || set -- services gateway
failed=0
while read -r file target; do
  dir=$(dirname "$file")
  echo "fuzz: $dir $target $time"
  fuzz() { (cd "$dir" && go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 20x . </dev/null) | tee "$said"; }
  # Where the end of the time meets a worker that is slow to answer, go test fails with these words alone (golang/go#75804).
  fuzz || { grep -qxE ' +context deadline exceeded' "$said" && ! grep -q 'Failing input' "$said" && fuzz; } || failed=1
done < <(grep -rE '^func Fuzz' --include='*_test.go' "$@" | sed -E 's/^([^:]+):func (Fuzz[A-Za-z0-9_]+).*/\1 \2/')
exit $failed
