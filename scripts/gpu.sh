#!/usr/bin/env bash
# The suite for a host with a real NVIDIA card: both readers beside nvidia-smi's own words, then the built programs, whose services
# take real memory of it, most of it. A card that others use makes it fail. One program writes where it has no memory, which the driver
# reports as XID 31.
#   scripts/gpu.sh             builds and runs it (Go and a C compiler; without a card it says so and runs nothing)
#   scripts/gpu.sh pack FILE   builds it, and packs it for a host that has no Go
#   scripts/gpu.sh run [FILE]  runs what was built, or packed for a checkout of the same commit. RUN=REGEXP: these tests alone
# LLAMA_CPP=DIR, a folder with llama.cpp's libraries: what an 8B model holds, for the table `whole` of services/platform/vram (python3).
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
out=.cache/gpu
build() {
  mkdir -p "$out"
  export GOFLAGS="-mod=readonly -trimpath"
  NVML=require scripts/build.sh "$out/bin"
  (cd deploy/e2e && CGO_ENABLED=1 go build -tags nvml,netgo,osusergo -ldflags '-s -w' -o "../../$out/bin/" ./engine/durward-engine)
  (cd services/executor && CGO_ENABLED=1 go test -c -tags nvml,real,hardware -ldflags '-s -w -extldflags=-Wl,-z,lazy' -o "../../$out/readers.test" ./internal/gpu/find)
  (cd deploy/e2e && CGO_ENABLED=0 go test -c -tags hardware -ldflags '-s -w' -o "../../$out/card.test" ./card)
}
run() {
  status=0
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  export DURWARD_GPU_PROGRAMS=$PWD/$out/bin
  "$out/readers.test" -test.v -test.run BothReaders -test.bench . -test.benchtime 200x || status=1
  (cd deploy/e2e/card && "../../../$out/card.test" -test.v -test.timeout 8m -test.run "${RUN:-.}") || status=1
  if [ -n "${LLAMA_CPP:-}" ]; then
    local model
    model=$(mktemp -d)
    python3 deploy/e2e/card/llama.py make "$model/model.gguf"
    for sizes in "8192 512" "32768 512" "131072 512" "32768 2048"; do
      # shellcheck disable=SC2086 # two arguments
      python3 deploy/e2e/card/llama.py load "$LLAMA_CPP" "$model/model.gguf" $sizes 2>/dev/null || status=1
    done
    rm -r "$model"
  fi
  return $status
}
case ${1:-} in
  pack)
    build
    # The fewest programs that the suite needs, so that it travels light.
    tar -C .cache -cf - gpu/{readers,card}.test gpu/bin/{audit,vault,executor,gateway,durward,durward-inspect,durward-engine} | xz -T0 "-${LEVEL:-6}" >"$2.part"
    mv "$2.part" "$2"
    ;;
  "" | run)
    if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null; then
      echo "no NVIDIA card here (nvidia-smi -L finds none): nothing was run" >&2
      exit
    fi
    if [ "${1:-}" = "" ]; then build; elif [ $# = 2 ]; then mkdir -p .cache && tar -C .cache -xf "$2"; fi
    run
    ;;
  *) echo "scripts/gpu.sh knows pack FILE and run [FILE], not $1" >&2; exit 2 ;;
esac
