#!/usr/bin/env bash
# Measures the built programs beside named baselines in one run, then runs the modules' own benchmarks. Numbers fail nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
(cd deploy/e2e/bench && go test -tags bench -count=1 -timeout 20m -run TestBench "$@")
for module in $(grep -rl --include='*_test.go' '^func Benchmark' gateway services | while read -r file; do
  dir=$(dirname "$file")
  while [ ! -f "$dir/go.mod" ]; do dir=$(dirname "$dir"); done
  echo "$dir"
done | sort -u); do
  echo "== $module"
  (cd "$module" && CGO_ENABLED=0 go test -run '^$' -bench . -benchmem ./... | grep -E '^(Benchmark|pkg:|FAIL|panic)')
done
