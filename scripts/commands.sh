#!/usr/bin/env bash
# Writes the command reference, deploy/docs/commands.md, from the help of the built program and of each of its commands, so that it
# cannot say anything else. scripts/commands.sh FILE writes it there.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
to=${1:-deploy/docs/commands.md}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -buildvcs=false -ldflags=-w -o "$work/durward" ./services/operator/cmd/durward
export HOME=$work NO_COLOR=1

# each calls "$1 COMMAND" for a command and for those below it, whose names stand in the help's sections after "Usage:" that are
# none of cobra's own. The help is in $work/help.
each() {
  "$work/durward" "${@:3}" --help >"$work/help"
  "$1" "${*:2}"
  awk '
    /^Usage:$/ { usage = 1; next }
    usage && /^[A-Z].*:$/ { names = !/^(Aliases|Examples|Flags|Global Flags|Additional help topics):$/; next }
    names && /^  [a-z]/ && $1 != "help" && $1 != "completion" { print $1 }' "$work/help" |
    while read -r name; do each "$@" "$name"; done
}

markdown() { printf '\n## %s\n\n```text\n' "$1" && cat "$work/help" && echo '```'; }
{
  printf '# Commands\n\nWhat `durward COMMAND --help` prints, for every command. `make generate` makes this page; `make lint` checks that it is current.\n'
  each markdown durward
  "$work/durward" help exit-codes >"$work/help"
  markdown "Exit codes"
} >"$work/page"
mv "$work/page" "$to"
