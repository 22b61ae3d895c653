#!/usr/bin/env bash
# The documents name no test, sentence, control or file that does not exist, and leave out no error code.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missing=0
complain() { echo "$*" >&2 && missing=1; }

mapfile -t documents < <(git ls-files -co --exclude-standard '*.md')
grep -rhoE --include='*_test.go' '^func (Test|Fuzz)[A-Za-z0-9]+' services gateway deploy | cut -d' ' -f2 | sort -u >"$work/tests"
while IFS=: read -r document name; do
  grep -qx "${name//\`/}" "$work/tests" || complain "$document names $name, which is no test"
done < <(grep -HoE '`(Test|Fuzz)[A-Z][A-Za-z0-9]*`' "${documents[@]}" | sort -u)

# Every code of the contract has its section, and each sentence of a table there stands in the code, as far as it is fixed.
refused=deploy/docs/refused.md
while read -r code; do
  grep -qx "## $code" "$refused" || complain "$refused has no section $code"
done < <(sed -nE 's/^  CODE_([A-Z_]+) = [1-9][0-9]*;.*/\1/p' proto/durward/call/v1/call.proto)
grep -rhvE --include='*.go' --exclude='*_test.go' '^\s*//' services gateway >"$work/code"
while IFS= read -r sentence; do
  while IFS= read -r part; do
    [ -z "${part// /}" ] || grep -qF -- "$part" "$work/code" || complain "$refused: no code says \"$part\""
  done <<<"${sentence//…/$'\n'}"
done < <(sed -nE 's/^\| `([^`]+)` \|.*/\1/p' "$refused")

# Controls that the code cites are explained, and links lead to files that are there.
while read -r control; do
  grep -qwF "$control" deploy/docs/controls.md || complain "the code cites $control, which deploy/docs/controls.md does not explain"
done < <(grep -rhoE --include='*.go' --include='*.proto' '\b(SEC-[A-Z][0-9]+|(ACL|APR|AUD|AUT|CACHE|CFG|CH|CRD|DEP|DNG|DOC|DSK|ENV|HOST|MSG|NET|NETS|OBS|OUT|PIPE|PVP|WS)-[0-9]+)\b' services gateway proto/durward | sort -u)
while IFS=: read -r document link; do
  [ -e "$(dirname "$document")/${link#](}" ] || complain "$document: there is no ${link#](}"
done < <(grep -HoE '\]\([^)# ]+' "${documents[@]}" | grep -v ://)
exit $missing
