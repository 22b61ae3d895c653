#!/usr/bin/env bash
# Prints published figures of GPU memory beside what the estimates say, with the conditions and source of each, and fails where a
# golden one is off by more than 3 %. Needs Go and nothing else.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
cd services/platform/vram
# Without a package on the line, go test shows what a test prints that passes.
exec go test -count=1 -run "^TestGolden\$" -report
