#!/usr/bin/env bash
# The suites against real parts: MCP clients from npm over HTTP and stdio, MCP servers from npm as egress' children, ssh-keygen on an approval as it is exported
# and on random changes of signatures and allowed_signers, a notification on a session bus, programs of an earlier commit beside these, promtool on alerts and metrics, Prometheus with the alerts beside running processes, the
# official conformance suite, for both of its sides; then the host's own: systemd in a sandbox, dockerd, programs in control groups, other people's servers in their sandbox, NVML over a driver
# library of ours, the production layout under its units, Debian's package, containers under Compose, the screen in tmux, audit on PostgreSQL, records forwarded to rsyslog, and spans and
# records to OpenTelemetry's collector.
# The parts of clients and of PostgreSQL wait much, for permits, locks and fail-overs: they go on beside the parts that are named after
# them; what they say comes last.
# Inspector and TypeScript SDK go through a third of their eras and transports, which DURWARD_SEED chooses; DURWARD_FULL=1 through all.
# Arguments name parts (clients mixed systemd docker process sandbox gpu layout packages compose terminal postgres syslog collector); all unless given, here or in REAL_PARTS.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
read -ra parts <<<"${REAL_PARTS:-clients mixed postgres systemd docker process sandbox gpu layout packages compose terminal syslog collector}"
[ $# -gt 0 ] || set -- "${parts[@]}"
run() { # PART
  local started=$SECONDS
  case $1 in
    clients)
      scripts/install-real.sh
      DURWARD_REAL=1 go test -count=1 -run SSHKeygen ./services/platform/statement
      DURWARD_REAL=1 go test -count=1 -run '^TestDesktop$' ./services/operator/internal/notify
      go test -tags real,grpcnotrace -count=1 -run '^TestReal' -v ./services/egress/internal/child
      go test -tags real,grpcnotrace -count=1 -timeout 20m -p 1 -parallel 12 -skip "${REAL_SKIP:-^$}|^Test(MixedVersions|Collector|ScreenInATerminal)$" -v ./deploy/e2e/real/... ./deploy/e2e/conformance/...
      ;;
    mixed)
      OLDER=$(scripts/older.sh)
      if [ -n "$OLDER" ]; then
        export OLDER
        go test -tags real,grpcnotrace -count=1 -run '^TestMixedVersions$' -v ./deploy/e2e/real
        go test -tags drill,grpcnotrace -count=1 -run '^TestDrillMixed$' -v ./deploy/e2e/drill
      else
        echo "real: NOT TESTED: mixed versions, since this clone has no history"
      fi
      ;;
    sandbox)
      scripts/install-real.sh sandbox
      DURWARD_REAL=1 go test -count=1 -v ./services/egress/internal/{sandbox,listing}
      DURWARD_REAL=1 PROGRAMS=plain PKG=deploy/e2e RUN='^TestServerOfASession$|^TestTranscripts$/^server$' scripts/test.sh -count=1
      ;;
    collector) PATH=$(scripts/tools.sh collector):$PATH go test -tags real,grpcnotrace -count=1 -run '^TestCollector$' -v ./deploy/e2e/real ;;
    systemd | docker | process | gpu | layout | packages | compose | terminal | postgres | syslog) "scripts/real-$1.sh" ;;
    *) echo "make real knows clients, mixed, systemd, docker, process, sandbox, gpu, layout, packages, compose, terminal, postgres, syslog and collector, not $1" >&2; exit 2 ;;
  esac
  echo "real: $1 took $((SECONDS - started)) s"
}

said=$(mktemp -d)
beside=()
# shellcheck disable=SC2329
finish() {
  [ ${#beside[@]} = 0 ] || kill -- "${beside[@]/#/-}" 2>/dev/null || true
  cat "$said"/* 2>/dev/null || true
  rm -r "$said"
}
trap finish EXIT
for part; do
  case $part:$# in
    *:1) run "$part" ;;
    clients:* | postgres:*)
      set -m
      run "$part" >"$said/$part" 2>&1 &
      beside+=($!)
      set +m
      ;;
    *) run "$part" ;;
  esac
done
for pid in "${beside[@]}"; do wait "$pid"; done
