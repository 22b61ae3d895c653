#!/usr/bin/env bash
# Writes what is derived: from proto/ Go code, the descriptor set for grpcurl -protoset, the tables of SECURITY.md and the reference of the
# RPCs, from the help of the commands their reference, from the
# alerts their runbook. With --check it changes nothing and fails if what is committed is not current.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
PATH=$(scripts/tools.sh generate):$PATH
descriptors() { # FILE
  buf build --path proto/durward --exclude-source-info -o "$1#format=binpb"
}
api() { # FILE
  local set
  set=$(mktemp) && buf build --path proto/durward -o "$set#format=binpb" && go run ./services/platform/cmd/callers -api "$set" >"$1" && rm "$set"
}
if [ "${1:-}" = --check ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  buf generate -o "$tmp"
  diff -r "$tmp/proto/gen" proto/gen || { echo "generated code is not current: make generate" >&2; exit 1; }
  descriptors "$tmp/durward.binpb"
  cmp "$tmp/durward.binpb" proto/durward.binpb || { echo "the descriptor set is not current: make generate" >&2; exit 1; }
  go run ./services/platform/cmd/callers -check SECURITY.md
  api "$tmp/api.md"
  diff "$tmp/api.md" deploy/docs/api.md || { echo "the reference of the RPCs is not current: make generate" >&2; exit 1; }
  scripts/runbook.sh >"$tmp/runbook.md"
  diff "$tmp/runbook.md" deploy/docs/runbook.md || { echo "the runbook is not current: make generate" >&2; exit 1; }
  scripts/commands.sh "$tmp/commands.md"
  diff "$tmp/commands.md" deploy/docs/commands.md || { echo "the command reference is not current: make generate" >&2; exit 1; }
  exit
fi
rm -rf proto/gen/durward
buf generate
descriptors proto/durward.binpb
go run ./services/platform/cmd/callers -write SECURITY.md
api deploy/docs/api.md
scripts/runbook.sh >deploy/docs/runbook.md
scripts/commands.sh
