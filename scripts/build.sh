#!/usr/bin/env bash
# Builds every binary into bin/ (or $1), without cgo.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-bin}
mkdir -p "$out"
version=$(git describe --always --dirty 2>/dev/null || echo unknown)
CGO_ENABLED=0 go build -ldflags "-s -w -X main.version=$version" -o "$out/" \
  ./gateway/cmd/... ./services/audit/cmd/... ./services/vault/cmd/... ./services/executor/cmd/... ./services/operator/cmd/...
