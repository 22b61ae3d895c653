#!/usr/bin/env bash
# usage: scripts/systemd-sandbox.sh [-u UNITDIR] [-b] [-p] COMMAND [ARGUMENT…]
#
# Runs COMMAND beside a systemd of its own and gives back its exit status. That systemd is process 1 of new PID, mount, IPC, UTS
# and cgroup namespaces, in its own sub-group of every cgroup hierarchy: the host's services, files and groups are out of its
# reach. The network and /tmp are the host's.
#   - /etc /usr /var /opt /srv /home /root are overlays: what COMMAND writes there (users, units, programs) is gone with the
#     sandbox; /run is fresh and writable. Every other folder is the host's own.
#   - Units come from UNITDIR (copied), /etc/systemd/system, /run/systemd/system and a small tree: basic.target, journald.
#     `systemctl daemon-reload` after writing more. With -b also the system bus and polkitd (Debian: dbus, polkitd).
#     With -p also from /usr/lib/systemd/system, which is empty, for what packages bring.
#   - COMMAND runs as root inside all of those namespaces with SANDBOX=1; the manager's own socket is /run/systemd/private.
# Needs root, systemd >= 250, overlayfs, and cgroups v1 or v2.
set -euo pipefail
. "$(dirname "$0")/help.sh"

if [ "${1:-}" = --inside ]; then # second half: process 1 to be, in the new namespaces
  shift
  work=$1 units=$2 bus=$3 packages=$4
  for folder in etc usr var opt srv home root; do
    mkdir -p "/$folder" "$work/over/$folder" "$work/tmp/$folder"
    mount -t overlay -o "lowerdir=/$folder,upperdir=$work/over/$folder,workdir=$work/tmp/$folder" overlay "/$folder"
  done
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/lock /run/systemd/system /run/log/journal /run/sandbox/units
  umount -l /sys/fs/cgroup
  if [ -d "$work/cgroup2" ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    grep -q '^0::/$' /proc/self/cgroup
  else
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    while read -r hierarchy; do
      mkdir -p "/sys/fs/cgroup/$hierarchy"
      options=$hierarchy
      [ "$hierarchy" != systemd ] || options=none,name=systemd
      mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$hierarchy"
    done <"$work/hierarchies"
    grep -q ':name=systemd:/$' /proc/self/cgroup # or the group's root is not ours, and nothing goes on
  fi
  tree=/run/sandbox/units
  vendor=/usr/lib/systemd/system
  for unit in basic sysinit shutdown local-fs sockets timers paths slices umount final network network-online multi-user time-sync; do
    cp "$vendor/$unit.target" "$tree/"
  done
  mkdir -p "$tree/sockets.target.wants"
  for unit in systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket; do
    cp "$vendor/$unit" "$tree/"
  done
  mkdir -p "$tree/systemd-journald.service.d"
  printf '[Service]\nDeviceAllow=\nProtectClock=no\n' >"$tree/systemd-journald.service.d/sandbox.conf"
  mkdir -p /etc/systemd/journald.conf.d
  printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nRateLimitIntervalSec=0\nForwardToSyslog=no\n' \
    >/etc/systemd/journald.conf.d/sandbox.conf
  ln -s ../systemd-journald.socket ../systemd-journald-dev-log.socket "$tree/sockets.target.wants/"
  if [ "$bus" = yes ]; then
    cp "$vendor"/dbus.{service,socket} "$vendor/polkit.service" "$tree/"
    ln -s ../dbus.socket "$tree/sockets.target.wants/"
  fi
  [ -z "$units" ] || cp -R "$units"/. "$tree/"
  printf '[Unit]\nDescription=Sandbox\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' >"$tree/default.target"
  [ -s /etc/machine-id ] || tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
  mount --make-rshared / # as on a host: systemd mounts a unit's credentials by it, and does so itself only where it is no container
  systemd-tmpfiles --create --prefix=/run/log/journal || true # as at boot: the group systemd-journal reads what is there
  # What would have started on a host by itself has no business here.
  export SYSTEMD_UNIT_PATH=$tree:/etc/systemd/system:/run/systemd/transient:/run/systemd/system container=sandbox
  if [ "$packages" = yes ]; then
    find "$vendor" -mindepth 1 -delete # of the overlay
    SYSTEMD_UNIT_PATH+=:$vendor
  fi
  exec env -i PATH="$PATH" SYSTEMD_UNIT_PATH="$SYSTEMD_UNIT_PATH" container=sandbox \
    /usr/lib/systemd/systemd --system --unit=default.target --log-target=journal --log-level=info --show-status=0
fi

units='' bus=no packages=no
while getopts 'u:bp' option; do
  case $option in
    u) units=$(realpath "$OPTARG") ;;
    b) bus=yes ;;
    p) packages=yes ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "the systemd sandbox needs root" >&2; exit 1; }
# shellcheck source=scripts/package.sh
. "$(dirname "$0")/package.sh"
package /usr/lib/systemd/systemd systemd
package /usr/bin/nsenter util-linux
if [ "$bus" = yes ]; then
  package /usr/bin/dbus-daemon dbus
  package /usr/lib/polkit-1/polkitd polkitd
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/systemd-sandbox.XXXXXX")
chmod 755 "$work"
name=durward-sandbox.$$
groups=()
outer='' init=''
sweep() {
  [ -z "$init" ] || kill -KILL "$init" 2>/dev/null || true # takes the whole PID namespace along
  [ -z "$outer" ] || wait "$outer" 2>/dev/null || true
  umount -l "$work/disk" 2>/dev/null || true
  for group in ${groups[@]+"${groups[@]}"}; do
    for ((try = 0; try < 50; try++)); do
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$group" ] || break
      sleep 0.1
    done
  done
  rm -rf "$work"
}
trap sweep EXIT
trap 'exit 130' INT TERM HUP

# The overlays' upper layers lie on a tmpfs, since an overlay cannot be another's upper layer.
mkdir "$work/disk"
mount -t tmpfs -o mode=755 tmpfs "$work/disk"
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mkdir "$work/disk/cgroup2"
  groups+=("/sys/fs/cgroup/$name")
else
  for hierarchy in systemd memory pids cpu devices; do
    [ -d "/sys/fs/cgroup/$hierarchy" ] || continue
    echo "$hierarchy" >>"$work/disk/hierarchies"
    groups+=("/sys/fs/cgroup/$hierarchy/$name")
  done
  [ ! -d /sys/fs/cgroup/unified ] || groups+=("/sys/fs/cgroup/unified/$name")
fi
for group in "${groups[@]}"; do mkdir -p "$group"; done

# The subshell joins the groups before it makes the namespaces, so that the groups are the roots that systemd sees.
(
  for group in "${groups[@]}"; do echo "$BASHPID" >"$group/cgroup.procs"; done
  exec unshare --mount --propagation private --pid --fork --kill-child=KILL --mount-proc --uts --ipc --cgroup \
    bash "$0" --inside "$work/disk" "$units" "$bus" "$packages"
) >"$work/log" 2>&1 </dev/null &
outer=$!
show() { echo "the systemd sandbox did not come up:" >&2; tail -n 40 "$work/log" >&2; }
for ((try = 0; ; try++)); do
  kill -0 "$outer" 2>/dev/null || { show; exit 1; }
  init=$(pgrep -P "$outer" || true)
  if [ -n "$init" ] && [ -S "/proc/$init/root/run/systemd/private" ]; then
    inside=(nsenter -t "$init" -m -p -i -u -C --)
    state=$("${inside[@]}" systemctl is-system-running 2>/dev/null || true)
    case $state in
      # With a bus, systemd is to be found there a moment later.
      running | degraded) [ "$bus" = no ] || "${inside[@]}" busctl status org.freedesktop.systemd1 >/dev/null 2>&1 && break ;;
    esac
  fi
  [ "$try" -lt 200 ] || { show; exit 1; }
  sleep 0.1
done

status=0
"${inside[@]}" env SANDBOX=1 "$@" || status=$?
if [ "$status" != 0 ] && [ -n "${SANDBOX_LOG:-}" ]; then tail -n 60 "$work/log" >&2; fi
exit "$status"
