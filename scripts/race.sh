#!/usr/bin/env bash
# The tests of every module but deploy/ under the race detector, which needs a C compiler. The programs themselves stay
# free of C: only this instrumentation is not. With -short: what only counts is counted without it. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v gcc >/dev/null || { echo "the race detector needs a C compiler: install gcc" >&2; exit 1; }
export CGO_ENABLED=1
packages=()
while read -r module; do
  case $module in deploy/* | proto) ;; *) packages+=("./$module/...") ;; esac
done < <(scripts/modules.sh)
go test -race -short "$@" "${packages[@]}" | awk '!/\[no test files\]$/'
