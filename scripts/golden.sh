#!/usr/bin/env bash
# What users and clients see, beside what was accepted: `golden.sh diff` shows the difference and fails if there is one;
# `golden.sh accept` rewrites the files of deploy/e2e/golden/testdata, and the operator's screens.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
cd deploy/e2e/golden
got=$(mktemp -d)
trap 'rm -rf "$got"' EXIT
operator=../../../services/operator/internal
screens=(go test -count=1 -run '^(TestGoldenScreens|TestTheFirstApprovalFitsOneScreen)$' "$operator/tui" "$operator/approval")
go test -count=1 -run '^TestGolden$' . -args -got "$got" >"$got.log" 2>&1 || { cat "$got.log"; exit 1; }
rm -f "$got.log"
case "${1:-}" in
  diff)
    status=0
    diff -ruN testdata "$got" || status=1
    "${screens[@]}" || status=1
    ;;
  accept)
    status=0
    rm -rf testdata
    cp -r "$got" testdata
    chmod -R u=rwX,go=rX testdata
    "${screens[@]}" -args -update
    ;;
  *) echo "usage: scripts/golden.sh diff|accept" >&2; exit 2 ;;
esac
find "$got" -type f -print0 | xargs -0 cat | awk -v files="$(find "$got" -type f | wc -l)" 'END { printf "%d goldens, %d lines\n", files, NR }'
exit "$status"
