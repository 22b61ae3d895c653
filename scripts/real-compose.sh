#!/usr/bin/env bash
# deploy/compose on a Docker Engine of its own (scripts/own-dockerd.sh), with images made here: set up, up, a first approval, each
# container killed, one image replaced, the project started twice, down and up, a backup put back. Nothing is pulled. Needs root, and Go for Docker Compose,
# which is built once. PROGRAMS=DIR takes programs that are built already; NVML=off needs no C compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools=$(scripts/tools.sh compose)
command -v ssh-agent >/dev/null || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-client; } >/dev/null
export GOFLAGS=-trimpath
if [ -z "${PROGRAMS:-}" ]; then
  PROGRAMS=$work/bin
  NVML=${NVML:-require} scripts/build.sh "$PROGRAMS"
fi
PROGRAMS=$PROGRAMS scripts/images.sh "$work/images"
PROGRAMS=$PROGRAMS scripts/images.sh "$work/again" >/dev/null
cmp "$work/images/durward.tar" "$work/again/durward.tar"
echo "real: the images twice, byte for byte"

# The next version: a vault that says so. The other images are the same.
next=v99.0.0-a.1
cp -r "$PROGRAMS" "$work/next"
CGO_ENABLED=0 go build -buildvcs=false -tags grpcnotrace -ldflags "-s -w -X durward.internal/services/platform/release.linked=$next" -o "$work/next/" ./services/vault/cmd/vault
PROGRAMS=$work/next scripts/images.sh "$work/next-images" >/dev/null
CGO_ENABLED=0 go test -c -tags real -o "$work/compose.test" ./services/operator/internal/install
# shellcheck disable=SC2016 # the inner shell's
COMPOSE=$tools/docker-compose COMPOSE_FILES=$PWD/deploy/compose IMAGES_NEXT=$work/next-images/durward.tar NEXT_VERSION=$next \
  scripts/own-dockerd.sh bash -c 'docker load --quiet --input "$1/images/durward.tar" && exec "$1/compose.test" -test.v -test.run TestRealCompose -test.timeout 9m' _ "$work"
