#!/usr/bin/env bash
# The docker driver, and what `durward catalog import docker` finds, against a Docker Engine of its own: its own data, bridge, ports
# and mounts in namespaces that end with it. Nothing is pulled from anywhere: the images are made from a static program by the tests
# themselves. Needs root. CORPORA=DIR adds Kubernetes' Pod Security examples and Docker's seccomp profile of that folder, judged by
# the driver's policy. Arguments go to the driver's test.
set -euo pipefail
cd "$(dirname "$0")/.."
missing() { echo "real docker needs $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || missing "root, for namespaces and a daemon of its own"

# package PROGRAM NAME installs a Debian package for a program that is not there.
package() {
  ! command -v "$1" >/dev/null || return 0
  command -v apt-get >/dev/null || missing "$1 (Debian: $2)"
  echo "real: installing $2"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$2"; } >/dev/null
}
package dockerd docker.io
package iptables iptables
package curl curl
package ip iproute2
package mountpoint util-linux

work=$(mktemp -d)
group=durward-docker-$$
# Everything that the namespaces do not end by themselves: the folder, and the control groups that the daemon made.
cleanup() {
  rm -rf --one-file-system "$work"
  find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null || true
}
trap cleanup EXIT

if [ -n "${CORPORA:-}" ]; then
  CORPORA=$(cd "$CORPORA" && pwd) go test -C services/executor -count=1 -v -run '^(TestPodSecurity|TestTheDockerProfile)$' \
    ./internal/driver/docker
fi

# The test's own program is what runs in the containers, so it must be static.
CGO_ENABLED=0 go test -C services/executor -tags real -c -o "$work/test" ./internal/driver/docker
CGO_ENABLED=0 go test -C services/operator -tags real -c -o "$work/found.test" ./internal/importer/discover
unshare --mount --propagation private --net --pid --fork --kill-child=KILL --mount-proc bash -euo pipefail -c '
  work=$1 group=$2
  shift 2
  ip link set lo up
  mount -t tmpfs -o mode=755 tmpfs /run   # nobody else'"'"'s daemons, sockets and locks
  dockerd --host="unix://$work/docker.sock" --data-root="$work/root" --exec-root="$work/exec" --pidfile="$work/pid" \
    --cgroup-parent="/$group" --exec-opt native.cgroupdriver=cgroupfs --storage-driver=overlay2 \
    --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false >"$work/log" 2>&1 &
  trap "tail -n 40 $work/log >&2" ERR
  for _ in $(seq 300); do
    curl -fsS --unix-socket "$work/docker.sock" http://docker/version >"$work/version" 2>/dev/null && break
    kill -0 $! 2>/dev/null || { echo "dockerd ended" >&2; false; }
    sleep 0.1
  done
  [ -s "$work/version" ] || { echo "dockerd did not answer" >&2; false; }
  echo "real: Docker $(grep -o "\"Version\":\"[^\"]*\"" "$work/version" | head -1 | cut -d\" -f4), API $(grep -o "\"ApiVersion\":\"[^\"]*\"" "$work/version" | head -1 | cut -d\" -f4)"
  mkdir "$work/tmp"
  cd services/executor/internal/driver/docker
  DURWARD_DOCKER_SOCKET="$work/docker.sock" TMPDIR="$work/tmp" "$work/test" -test.v -test.count=1 -test.timeout=10m "$@" || code=$?
  DURWARD_DOCKER_SOCKET="$work/docker.sock" TMPDIR="$work/tmp" "$work/found.test" -test.v -test.count=1 -test.timeout=2m -test.run=RealContainers || code=$?
  # The daemon ends before its mounts do.
  kill -TERM "$(cat "$work/pid")" 2>/dev/null && wait || true
  mountpoint -q "$work/root" && umount "$work/root" || true
  exit "${code:-0}"
' _ "$work" "$group" "$@"
