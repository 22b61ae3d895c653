#!/usr/bin/env bash
# The docker driver, and what `durward catalog import docker` finds, against a Docker Engine of its own (scripts/own-dockerd.sh).
# Nothing is pulled from anywhere: the images are made from a static program by the tests themselves. Needs root.
# CORPORA=DIR adds Kubernetes' Pod Security examples and Docker's seccomp profile of that folder, judged by
# the driver's policy. Arguments go to the driver's test.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${CORPORA:-}" ]; then
  CORPORA=$(cd "$CORPORA" && pwd) go test -C services/executor -count=1 -v -run '^(TestPodSecurity|TestTheDockerProfile)$' \
    ./internal/driver/docker
fi

# The test's own program is what runs in the containers, so it must be static.
go test -C services/executor -tags real,grpcnotrace -c -o "$work/test" ./internal/driver/docker
go test -C services/operator -tags real,grpcnotrace -c -o "$work/found.test" ./internal/importer/discover
# shellcheck disable=SC2016 # the inner shell's
scripts/own-dockerd.sh bash -euo pipefail -c '
  tests=$1
  shift
  cd services/executor/internal/driver/docker
  export DURWARD_DOCKER_SOCKET="$WORK/docker.sock"
  "$tests/test" -test.v -test.count=1 -test.timeout=10m "$@" || code=$?
  "$tests/found.test" -test.v -test.count=1 -test.timeout=2m -test.run=RealContainers || code=$?
  exit "${code:-0}"
' _ "$work" "$@"
