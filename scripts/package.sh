# Sourced: package PROGRAM NAME… installs Debian packages for a program, or a file, that is not there. Scripts that run side by side
# wait for each other.
# shellcheck shell=bash
package() {
  ! { [ -e "$1" ] || command -v "$1"; } >/dev/null || return 0
  { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; } || { echo "$0 needs $1 (Debian: ${*:2})" >&2; exit 1; }
  echo "installing ${*:2}" >&2
  # shellcheck disable=SC2016
  DEBIAN_FRONTEND=noninteractive flock /var/lib/apt/lists \
    bash -c 'apt-get update && apt-get install -y --no-install-recommends "$@"' apt "${@:2}" >/dev/null
}
