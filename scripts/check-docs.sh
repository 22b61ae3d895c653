#!/usr/bin/env bash
# SECURITY.md may name no test that does not exist.
set -euo pipefail
cd "$(dirname "$0")/.."
missing=0
for name in $(grep -oE '`(Test|Fuzz)[A-Za-z0-9]+`' SECURITY.md | tr -d '`' | sort -u); do
  grep -rqE "^func $name\(" --include='*_test.go' services gateway deploy || { echo "SECURITY.md names $name, which is no test" >&2; missing=1; }
done
exit $missing
