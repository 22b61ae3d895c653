#!/usr/bin/env bash
# Builds every program into bin/ and runs Durward in this terminal, for trying it out. Needs Go and nothing else; with a C compiler
# GPUs are read through the driver's library.
# Arguments go to `durward up`: scripts/run.sh --home /tmp/durward
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
echo "Building into bin/; the first time this takes minutes …" >&2
scripts/build.sh
exec bin/durward up --development --built "$@"
