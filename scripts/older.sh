#!/usr/bin/env bash
# Prints the folder of the programs of an earlier COMMIT of this repository, and builds them where they are not there. Without an argument it
# is the newest release before this commit, or where there is none the commit 100 before; where the history does not reach that far (a shallow clone) it
# prints nothing, and says so.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
base=${1:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || echo HEAD~100)}
commit=$(git rev-parse --verify --quiet "$base^{commit}") || {
  echo "there is no commit $base in this history" >&2
  [ $# = 0 ]
  exit
}
kept=$PWD/.cache/older/$commit
if [ ! -d "$kept" ]; then
  source=$(mktemp -d)
  trap 'rm -rf "$source"' EXIT
  git archive "$commit" | tar -x -C "$source"
  (cd "$source" && CGO_ENABLED=0 go run ./deploy/e2e/cmd/programs plain >/dev/null)
  mkdir -p "${kept%/*}"
  mv "$source/.cache/e2e/plain" "$kept"
fi
echo "$kept"
