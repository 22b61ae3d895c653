#!/usr/bin/env bash
# Builds every binary into bin/ (or $1), without cgo but for the executor: where a C compiler is, it reads GPUs through the
# driver's library (NVML). NVML=require fails without a compiler: what is released has it. NVML=off never uses one.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
out=${1:-bin}
mkdir -p "$out"
ldflags="-s -w -X durward.internal/services/platform/release.linked=$(scripts/version.sh)"
# GOFLAGS of whoever builds, from the environment or `go env -w`, could add build tags, and with them what no product carries.
export GOFLAGS="-mod=readonly -trimpath"
# gRPC's page of traces, which no product serves, would keep the linker from leaving out a fifth of each program.
build() { go build -buildvcs=false -o "$out/" "$@"; }
executor=./services/executor/cmd/executor
nvml=${NVML:-auto}
cc=$(go env CC)
if [ "$nvml" != off ] && command -v "${cc%% *}" >/dev/null; then
  # Names of hosts and users are looked up as in the other binaries. The library is found at run time, so its functions must not
  # be looked for before they are called.
  CGO_ENABLED=1 build -tags nvml,netgo,osusergo,grpcnotrace -ldflags "$ldflags -extldflags=-Wl,-z,lazy" "$executor"
  executor=
elif [ "$nvml" = require ]; then
  echo "NVML=require: there is no C compiler ($cc)" >&2
  exit 1
elif [ "$nvml" != off ]; then
  echo "No C compiler: the executor is built without NVML and reads GPUs with nvidia-smi, if there is one." >&2
fi
CGO_ENABLED=0 build -tags grpcnotrace -ldflags "$ldflags" ${executor:+"$executor"} ./services/executor/cmd/durward-demo \
  ./gateway/cmd/... ./services/audit/cmd/... ./services/vault/cmd/... ./services/operator/cmd/... ./services/inspector/cmd/... ./services/egress/cmd/...
