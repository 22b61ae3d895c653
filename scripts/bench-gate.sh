#!/usr/bin/env bash
# Fails where benchstat's comparison as CSV ($2) says that processor time or allocations of a read grew by more than $1 percent.
set -euo pipefail
. "$(dirname "$0")/help.sh"
awk -F, -v gate="$1" '
  $2 ~ /^(cpu-sec|allocs)\/op$/ { unit = $2; next }
  $2 ~ /\/(op|s)$|sec$/ { unit = ""; next }
  unit != "" && $1 ~ /^Read\// {
    seen[unit]++
    if ($6 ~ /^\+/ && $6 + 0 > gate) { print $1 ": " unit " grew by " $6 " (" $7 "), the most is " gate " %"; bad = 1 }
  }
  END {
    if (!seen["cpu-sec/op"] || !seen["allocs/op"]) { print "the comparison holds no processor time or no allocations"; bad = 1 }
    exit bad
  }' "$2" >&2
