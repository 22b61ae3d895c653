#!/usr/bin/env bash
# Every test that needs nothing but Go: the modules' own, then the built programs end to end. Arguments go to `go test`
# (scripts/test.sh -count=1 -run TestX). The last line says how many tests passed and failed; a test's output is shown
# when its package failed.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
mapfile -t modules < <(scripts/modules.sh)
units=() ends=()
for module in "${modules[@]}"; do
  case $module in
    deploy/*) ends+=("./$module/...") ;;
    *) units+=("./$module/...") ;;
  esac
done
{
  status=0
  go test -v "$@" "${units[@]}" 2>&1 || status=1
  # By themselves: they start processes and measure time limits. Most of their time they wait, so several go on at once.
  go test -v -timeout 15m -parallel 4 "$@" "${ends[@]}" 2>&1 || status=1
  exit "$status"
} | awk '
  /^=== (RUN|PAUSE|CONT|NAME)/ || /^PASS$/ || /\[no test files\]$/ { next }
  /^ *--- (PASS|SKIP)/ { if ($2 == "PASS:") passed++; else { skipped++; held = held $0 "\n" } next }
  /^ *--- FAIL/ { failed++ }
  /^FAIL\t.*\[(build|setup) failed\]/ { failed++ }
  /^ok / { print; held = ""; next }
  /^FAIL/ { printf "%s", held; print; held = ""; next }
  { held = held $0 "\n" }
  END { printf "%s", held; printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : "" }'
