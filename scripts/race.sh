#!/usr/bin/env bash
# The tests of every module but deploy/ under the race detector, which needs a C compiler. The programs themselves stay
# free of C: only this instrumentation is not. Arguments go to `go test`.
set -euo pipefail
. "$(dirname "$0")/help.sh"
RACE=1 E2E=0 exec "$(dirname "$0")/test.sh" "$@"
