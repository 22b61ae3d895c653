#!/usr/bin/env bash
# Measures the built programs beside named baselines in one run, then runs the modules' own benchmarks. Numbers fail nothing.
# The result stays in .cache/bench/result.json; "publish" instead of the benchmarks writes the document's tables from it.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
result=$PWD/.cache/bench/result.json
if [ "${1:-}" = publish ]; then
  [ -f "$result" ] || { echo "there is no $result: run make bench first" >&2; exit 1; }
  install -m 644 "$result" deploy/docs/performance.json
  cd deploy/e2e && exec go run ./bench/document ../docs/performance.json ../docs/performance.md
fi
mkdir -p "${result%/*}"
(cd deploy/e2e/bench && go test -tags bench,grpcnotrace -count=1 -timeout 20m -run TestBench -args -json "$result" "$@")
for module in $(grep -rl --include='*_test.go' '^func Benchmark' gateway services | while read -r file; do
  dir=$(dirname "$file")
  while [ ! -f "$dir/go.mod" ]; do dir=$(dirname "$dir"); done
  echo "$dir"
done | sort -u); do
  echo "== $module"
  (cd "$module" && go test -run '^$' -bench . -benchmem ./... | grep -E '^(Benchmark|pkg:|FAIL|panic)')
done
# What one poll of the GPUs costs: the real NVML binding over the stand-in for the driver's library, which answers at once.
if command -v "${CC:-cc}" >/dev/null; then
  echo "== services/executor, NVML"
  scripts/real-gpu.sh -run '^$' -benchmem -benchtime 2000x | grep -E '^(Benchmark.*/op|FAIL|panic)'
else
  echo "no C compiler: what a poll of NVML costs is not measured"
fi
