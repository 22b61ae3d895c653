#!/usr/bin/env bash
# Builds the stand-in for the GPU driver's library as $1/libnvidia-ml.so.1. Needs a C compiler.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -pthread -Wl,-soname,libnvidia-ml.so.1 \
  -o "$out/libnvidia-ml.so.1" nvml.c
