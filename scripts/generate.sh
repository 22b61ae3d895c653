#!/usr/bin/env bash
# Writes what is derived: from proto/ Go code and the tables of SECURITY.md, from the help of the commands their reference. With
# --check it changes nothing and fails if what is committed is not current.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$(scripts/tools.sh generate):$PATH
if [ "${1:-}" = --check ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  buf generate -o "$tmp"
  diff -r "$tmp/proto/gen" proto/gen || { echo "generated code is not current: make generate" >&2; exit 1; }
  go run ./services/platform/cmd/callers -check SECURITY.md
  scripts/commands.sh "$tmp/commands.md"
  diff "$tmp/commands.md" deploy/docs/commands.md || { echo "the command reference is not current: make generate" >&2; exit 1; }
  exit
fi
rm -rf proto/gen/durward
buf generate
go run ./services/platform/cmd/callers -write SECURITY.md
scripts/commands.sh
