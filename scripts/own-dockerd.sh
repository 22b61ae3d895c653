#!/usr/bin/env bash
# usage: scripts/own-dockerd.sh COMMAND [ARGUMENT…]
#
# Runs COMMAND beside a Docker Engine of its own, and gives back its exit status: its own data, bridge, ports and mounts in namespaces that
# end with it. DOCKER_HOST names the engine's socket, WORK a folder that goes with it. What would be pulled fails: there is no network
# but loopback. Needs root.
set -euo pipefail
. "$(dirname "$0")/help.sh"
[ "$(id -u)" = 0 ] || { echo "$0 needs root, for namespaces and a daemon of its own" >&2; exit 1; }
# shellcheck source=scripts/package.sh
. "$(dirname "$0")/package.sh"
package dockerd docker.io
package iptables iptables
package curl curl
package ip iproute2
package mountpoint util-linux

WORK=$(mktemp -d)
export WORK GROUP=durward-docker-$$ DOCKER_HOST=unix://$WORK/docker.sock
# Everything that the namespaces do not end by themselves: the folder, and the control groups that the daemon made.
cleanup() {
  rm -rf --one-file-system "$WORK"
  find /sys/fs/cgroup -depth -type d -path "*/$GROUP*" -exec rmdir {} + 2>/dev/null || true
}
trap cleanup EXIT
unshare --mount --propagation private --net --pid --fork --kill-child=KILL --mount-proc bash -euo pipefail -c '
  ip link set lo up
  mount -t tmpfs -o mode=755 tmpfs /run   # nobody else'"'"'s daemons, sockets and locks
  dockerd --host="$DOCKER_HOST" --data-root="$WORK/root" --exec-root="$WORK/exec" --pidfile="$WORK/pid" \
    --cgroup-parent="/$GROUP" --exec-opt native.cgroupdriver=cgroupfs --storage-driver=overlay2 \
    --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false >"$WORK/log" 2>&1 &
  trap "tail -n 40 $WORK/log >&2" ERR
  for _ in $(seq 300); do
    curl -fsS --unix-socket "$WORK/docker.sock" http://docker/version >"$WORK/version" 2>/dev/null && break
    kill -0 $! 2>/dev/null || { echo "dockerd ended" >&2; false; }
    sleep 0.1
  done
  [ -s "$WORK/version" ] || { echo "dockerd did not answer" >&2; false; }
  echo "real: Docker $(grep -o "\"Version\":\"[^\"]*\"" "$WORK/version" | head -1 | cut -d\" -f4), API $(grep -o "\"ApiVersion\":\"[^\"]*\"" "$WORK/version" | head -1 | cut -d\" -f4)"
  mkdir "$WORK/tmp"
  TMPDIR="$WORK/tmp" "$@" || code=$?
  # The daemon ends before its mounts do.
  kill -TERM "$(cat "$WORK/pid")" 2>/dev/null && wait || true
  mountpoint -q "$WORK/root" && umount "$WORK/root" || true
  exit "${code:-0}"
' _ "$@"
