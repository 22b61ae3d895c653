#!/usr/bin/env bash
# Attacks the built programs and prints a line for each attack; any effect, or a negative control that shows none, fails.
# scripts/drill.sh 'gateway-.*' runs those that match. Attacks that repeat one thing very often take a sample, and those on
# switches run once; with DURWARD_FULL=1 they do so at full size, and 3 times. With CONTROLS=3 a third of most attacks' controls are
# tried, which DURWARD_SEED chooses. WORLDS says how many installations run at once: five a core, which mostly wait.
# Lines on audit's syscalls need strace (scripts/install-real.sh strace), and say so where there is none. Those on other people's servers
# need root and bubblewrap, which is installed.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
[ "$(id -u)" != 0 ] || scripts/install-real.sh sandbox
cd deploy/e2e/drill
exec go test -tags drill,grpcnotrace -count=1 -timeout 90m -run TestDrill -args -worlds "${WORLDS:-$((5 * $(nproc)))}" -controls "${CONTROLS:-1}" -lines "${1:-.}"
