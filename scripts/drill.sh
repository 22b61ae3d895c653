#!/usr/bin/env bash
# Attacks the built programs and prints a line for each attack; any effect, or a negative control that shows none, fails.
# scripts/drill.sh 'gateway-.*' runs those that match.
set -euo pipefail
cd "$(dirname "$0")/../deploy/e2e/drill"
exec go test -tags drill -count=1 -timeout 40m -run TestDrill -args -lines "${1:-.}"
