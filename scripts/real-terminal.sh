#!/usr/bin/env bash
# durward's screen in a real terminal: tmux at 80x24 and at 200x60, over running processes. Needs Go and tmux, which is installed if
# it is missing. Arguments go to `go test`.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
. scripts/package.sh
package tmux tmux
cd deploy/e2e
REQUIRE_TMUX=1 go test -tags real,grpcnotrace -count=1 -timeout 10m -v -run TestScreenInATerminal "$@" ./real/...
