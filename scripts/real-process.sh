#!/usr/bin/env bash
# Programs in control groups, as production starts them: limits that the kernel holds to, another user, and nobody left behind.
# Needs root, Go and a host that lets root make control groups. Arguments go to `go test`.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
go test -tags real,grpcnotrace -count=1 -v "$@" ./services/platform/cgroup ./services/executor/internal/driver/process/...
