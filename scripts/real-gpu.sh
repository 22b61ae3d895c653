#!/usr/bin/env bash
# How GPUs are read, against real parts: the real NVML binding over a stand-in for the driver's library, and a stand-in for
# nvidia-smi, whose memory changes while they are read. scripts/gpu.sh reads a real card. Needs Go and a C compiler, which is installed if it
# is missing. Arguments go to `go test`.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
. scripts/package.sh
package "${CC:-cc}" gcc libc6-dev
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
deploy/e2e/fakegpu/build.sh "$parts"
(cd deploy/e2e && go build -o "$parts/nvidia-smi" ./fakegpu/nvidia-smi)
export DURWARD_FAKE_NVML=$parts/libnvidia-ml.so.1 DURWARD_FAKE_SMI=$parts/nvidia-smi
cd services/executor
CGO_ENABLED=1 go test -tags nvml,real,netgo,osusergo,grpcnotrace -ldflags '-extldflags=-Wl,-z,lazy' -count=1 -v -bench Read -benchtime 200x "$@" \
  ./internal/gpu/...
