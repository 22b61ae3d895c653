#!/usr/bin/env bash
# Debian's package: made twice, in two folders, with the same bytes; held to lintian; then, in the sandbox of scripts/systemd-sandbox.sh and a
# network namespace of its own, installed over an installation without it, upgraded with the state of an earlier version, tried from another
# network namespace, broken, removed, purged, and taken to a first approved change on a bare host. Needs root, for the sandbox, and a C compiler.
# PROGRAMS=DIR takes programs that are built already, and packs them twice; NVML=off needs no C compiler.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
scripts/install-real.sh packages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # other users run what is in it
ssh-keygen -q -t ed25519 -N '' -C maker -f "$work/release"
printf 'maker namespaces="durward-release" %s\n' "$(cat "$work/release.pub")" >"$work/signers"
export SIGNING_KEY=$work/release
if [ -z "${PROGRAMS:-}" ]; then
  PROGRAMS=$work/bin
  NVML=${NVML:-require} scripts/build.sh "$PROGRAMS"
  # The second one from another folder, whose name nothing in it may carry.
  mkdir "$work/copy"
  git ls-files -co --exclude-standard -z | tar --null --no-recursion -T - -c | tar -x -C "$work/copy"
  cp -r .git "$work/copy/"
  (cd "$work/copy" && unset PROGRAMS && scripts/packages.sh "$work/again")
else
  PROGRAMS=$PROGRAMS scripts/packages.sh "$work/again"
fi
PROGRAMS=$PROGRAMS scripts/packages.sh "$work/package"
cmp "$work"/again/*.deb "$work"/package/*.deb
echo "real: the package twice, byte for byte: $(stat -c %s "$work"/package/*.deb) bytes"
lintian --fail-on error "$work"/package/*.deb

# An earlier version: two of its programs, which say so.
earlier=v0.0.0-a.1
mkdir "$work/earlier"
cp "$PROGRAMS"/* "$work/earlier/"
go build -buildvcs=false -tags grpcnotrace -ldflags "-s -w -X durward.internal/services/platform/release.linked=$earlier" -o "$work/earlier/" \
  ./services/audit/cmd/audit ./services/operator/cmd/durward
PROGRAMS=$work/earlier scripts/packages.sh "$work/earlier-package"

go test -c -tags real,grpcnotrace -o "$work/package.test" ./services/operator/internal/install
# shellcheck disable=SC2016 # the inner shell's
unshare --net bash -c 'ip link set lo up && exec scripts/systemd-sandbox.sh -b -p "$@"' _ \
  env PROGRAMS="$PROGRAMS" PACKAGE="$(echo "$work"/package/*.deb)" EARLIER="$(echo "$work"/earlier-package/*.deb)" EARLIER_VERSION="$earlier" SIGNERS="$work/signers" \
  "$work/package.test" -test.v -test.run TestRealPackage -test.timeout 20m
