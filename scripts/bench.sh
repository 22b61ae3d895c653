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
# What one poll of the GPUs costs: the real NVML binding over the stand-in for the driver's library, which answers at once.
if command -v "${CC:-cc}" >/dev/null; then
  echo "== services/executor, NVML"
  scripts/real-gpu.sh -run '^$' -benchmem -benchtime 2000x | grep -E '^(Benchmark.*/op|FAIL|panic)'
else
  echo "no C compiler: what a poll of NVML costs is not measured"
fi
