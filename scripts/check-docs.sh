#!/usr/bin/env bash
# The documents name no test, sentence, control or file that does not exist, and leave out no error code.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missing=0
complain() { echo "$*" >&2 && missing=1; }

mapfile -t documents < <(git ls-files -co --exclude-standard '*.md')
grep -rhoE --include='*_test.go' '^func (Test|Fuzz)[A-Za-z0-9]+' services gateway deploy | cut -d' ' -f2 >"$work/tests"
while IFS=: read -r document name; do
  complain "$document names $name, which is no test"
done < <(grep -HoE '`(Test|Fuzz)[A-Z][A-Za-z0-9]*`' "${documents[@]}" | tr -d '`' | sort -u |
  awk -F: 'NR == FNR { tests[$1]; next } !($2 in tests)' "$work/tests" -)

# Every code of the contract has its section, and each sentence of a table there stands in the code, as far as it is fixed.
refused=deploy/docs/refused.md
while read -r code; do
  grep -qx "## $code" "$refused" || complain "$refused has no section $code"
done < <(sed -nE 's/^  CODE_([A-Z_]+) = [1-9][0-9]*;.*/\1/p' proto/durward/call/v1/call.proto)
while read -r part; do
  complain "$refused: no code says \"$part\""
done < <(sed -nE 's/^\| `([^`]+)` \|.*/\1/p' "$refused" | sed 's/…/\n/g' | grep '[^ ]' >"$work/parts"
  grep -rhF --include='*.go' --exclude='*_test.go' '"' services gateway | grep -v '^[[:space:]]*//' |
    awk 'NR == FNR { parts[$0]; next } { for (p in parts) if (index($0, p)) delete parts[p] } END { for (p in parts) print p }' "$work/parts" -)

# Every guide to a security feature says what an agent can and cannot change (DOC-1).
while read -r guide; do
  complain "$guide does not say what an agent can and cannot change: **Boundary.**"
done < <(grep -LF '**Boundary.**' SECURITY.md deploy/docs/{README,install,connect,describe-host,memory,ask-less,notify,audit,production,refused,controls,credentials,privacy,egress,servers,postgresql}.md)

# Controls that the code cites are explained, and links and paths lead to files that are there.
ids='\b(SEC-[A-Z][0-9]+|(ACL|APR|AUD|AUT|CACHE|CFG|CH|CRD|DEP|DNG|DOC|DSK|ENV|HOST|MSG|NET|NETS|NTF|OBS|OUT|PIPE|PVP|WS)-[0-9]+)\b'
grep -ohE "$ids" deploy/docs/controls.md | sort -u >"$work/controls"
while read -r control; do
  complain "the code cites $control, which deploy/docs/controls.md does not explain"
done < <(grep -rhoE --include='*.go' --include='*.proto' "$ids" services gateway proto/durward | sort -u | comm -23 - "$work/controls")
while IFS=: read -r document link; do
  [[ $document == */* ]] || document=./$document
  [ -e "${document%/*}/${link#](}" ] || complain "$document: there is no ${link#](}"
done < <(grep -HoE '\]\([^)# ]+' "${documents[@]}" | grep -v ://)
while IFS=: read -r document path; do
  [ -e "${path//\`/}" ] || complain "$document: there is no ${path//\`/}"
done < <(grep -HoE '`(services|gateway|deploy|scripts|proto)/[A-Za-z0-9_./-]+`' "${documents[@]}" | sort -u)
exit $missing
