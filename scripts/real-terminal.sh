#!/usr/bin/env bash
# durward's screen in a real terminal: tmux at 80x24 and at 200x60, over running processes. Needs Go and tmux, which is installed if
# it is missing. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v tmux >/dev/null || apt-get install -y --no-install-recommends tmux >/dev/null
cd deploy/e2e
REQUIRE_TMUX=1 CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath" go test -tags real -count=1 -timeout 10m -v -run TestScreenInATerminal "$@" ./real/...
