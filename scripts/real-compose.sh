#!/usr/bin/env bash
# deploy/compose on a Docker Engine of its own (scripts/own-dockerd.sh), with images made here: set up, up, a first approval, each
# container killed, one image replaced, the project started twice, down and up, a backup put back, a service as a container; then
# anew with PostgreSQL and Prometheus.
# Nothing is pulled. Needs root, and Go for Docker Compose, which is built once. PROGRAMS=DIR takes programs that are built already; NVML=off needs no C compiler.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools=$(scripts/tools.sh compose)
scripts/install-real.sh postgres
scripts/install-real.sh compose
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
go build -buildvcs=false -tags grpcnotrace -ldflags "-s -w -X durward.internal/services/platform/release.linked=$next" -o "$work/next/" ./services/vault/cmd/vault
PROGRAMS=$work/next scripts/images.sh "$work/next-images" >/dev/null

# What stands for the official images of PostgreSQL and Prometheus: this host's programs, with the libraries that they need, and of the one
# what its entrypoint does.
closure() { # ROOT FILE… copies files with their libraries
  local root=$1
  shift
  cp -rL --parents -t "$root" "$@"
  { find -L "$@" -type f -exec ldd {} + 2>/dev/null || true; } | grep -oE '/lib[^ :]+\.so[^ :]*' | sort -u | xargs cp -L --parents -t "$root"
}
pg=/usr/lib/postgresql/15
mkdir -p "$work/demo" "$work"/{postgres,prometheus}/{tmp,etc} "$work"/postgres/{var/lib/postgresql/data,run/postgresql} "$work"/prometheus/{bin,prometheus}
ln -s /run "$work/postgres/var/run"
closure "$work/postgres" /bin/sh $pg/bin/{postgres,initdb,pg_ctl,psql,pg_isready} $pg/lib
cp -rL --parents -t "$work/postgres" /usr/share/postgresql/15 /usr/share/zoneinfo
cat >"$work/postgres/entrypoint.sh" <<'ENTRYPOINT'
#!/bin/sh
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username=postgres $POSTGRES_INITDB_ARGS
  echo "host all all all $POSTGRES_HOST_AUTH_METHOD" >>"$PGDATA/pg_hba.conf"
  pg_ctl -o "-c listen_addresses=''" -w start
  for file in /docker-entrypoint-initdb.d/*.sql; do psql -X -v ON_ERROR_STOP=1 -f "$file"; done
  pg_ctl -m fast -w stop
fi
exec "$@"
ENTRYPOINT
chmod 755 "$work/postgres/entrypoint.sh"
chown 999:999 "$work"/postgres/{var/lib/postgresql/data,run/postgresql}
# A service for the executor to start.
go build -buildvcs=false -ldflags "-s -w" -o "$work/demo/" ./services/executor/cmd/durward-demo
closure "$work/prometheus" /usr/bin/prometheus
mv "$work/prometheus/usr/bin/prometheus" "$work/prometheus/bin/"
chown 65534:65534 "$work/prometheus/prometheus"
go test -c -tags real,grpcnotrace -o "$work/compose.test" ./services/operator/internal/install
# shellcheck disable=SC2016 # the inner shell's
COMPOSE=$tools/docker-compose COMPOSE_FILES=$PWD/deploy/compose IMAGES_NEXT=$work/next-images/durward.tar NEXT_VERSION=$next \
  POSTGRES_IMAGE=test/postgres PROMETHEUS_IMAGE=test/prometheus \
  scripts/own-dockerd.sh bash -c 'docker load --quiet --input "$1/images/durward.tar" &&
    tar -C "$1/postgres" -c . | docker import -c "ENV PATH='$pg'/bin PGDATA=/var/lib/postgresql/data LANG=C" -c "ENTRYPOINT [\"/entrypoint.sh\"]" - test/postgres &&
    tar -C "$1/prometheus" -c . | docker import -c "USER 65534:65534" -c "ENTRYPOINT [\"/bin/prometheus\"]" - test/prometheus &&
    tar -C "$1/demo" -c . | docker import -c "ENTRYPOINT [\"/durward-demo\"]" - test/demo:1 && exec "$1/compose.test" -test.v -test.run TestRealCompose -test.timeout 9m' _ "$work"
