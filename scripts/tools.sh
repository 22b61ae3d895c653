#!/usr/bin/env bash
# Builds the pinned tools once into .cache/tools and prints that folder. $1 narrows it: "generate", "lint", "bench", "package", "compose" or "collector".
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
bin=$PWD/.cache/tools
mkdir -p "$bin"
install() { # MODULE_DIR: rebuilds only when its pins, or the tools that it holds itself, changed
  local stamp
  stamp=$bin/$(echo "$1" | tr / _).$(git ls-files -z "$1/go.mod" "$1/go.sum" ":(glob)$1/*/*.go" | xargs -0 cat | sha256sum | cut -c1-16)
  [ -e "$stamp" ] && return
  (cd "$1" && GOWORK=off GOFLAGS="-mod=readonly -trimpath" CGO_ENABLED=0 GOBIN=$bin go install tool) >&2
  touch "$stamp"
}
case "${1:-generate}" in
  generate) install scripts/tools ;;
  lint) install scripts/tools/lint ;;
  bench) install scripts/tools/bench ;;
  package) install scripts/tools/package ;;
  collector) install scripts/tools/collector ;;
  compose) install scripts/tools/compose; ln -sf cmd "$bin/docker-compose" ;;
esac
echo "$bin"
