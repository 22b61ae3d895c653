#!/usr/bin/env bash
# Makes one container image for each process, and one for people and the set-up, FROM nothing: our own programs, the users of
# deploy/compose/passwd and, for the executor, the C library of the host that built it (NVML needs it). bin/images/durward.tar (or $1/durward.tar) is what
# `docker load` and `podman load` read. Nothing is pulled and no daemon is asked; the same commit and compiler give the same bytes.
# PROGRAMS=DIR takes programs that scripts/build.sh has built; TAG is the images' tag (local).
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
out=${1:-bin/images} tag=${TAG:-local}
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PROGRAMS:-}" ]; then
  PROGRAMS=$work/bin
  NVML=${NVML:-require} scripts/build.sh "$PROGRAMS"
fi
umask 022
epoch=$(git log -1 --format=%ct) arch=$(go env GOARCH)
created=$(date -u -d "@$epoch" +%FT%TZ)
archive=$work/archive
mkdir "$archive"

# layer NAME packs the tree below $work/NAME; its digest is its name in the archive.
layer() {
  local sum
  tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu -C "$work/$1" -cf "$work/$1.tar" .
  sum=$(sha256sum <"$work/$1.tar" | cut -d' ' -f1)
  mv "$work/$1.tar" "$archive/$sum.tar"
  rm -r "${work:?}/$1"
  echo "$sum" >"$work/layer.$1"
}
install -D -m 644 -t "$work/users/etc" deploy/compose/passwd deploy/compose/group
layer users
for program in audit vault executor gateway egress durward durward-inspect; do
  install -D -m 755 -t "$work/$program/usr/lib/durward" "$PROGRAMS/$program"
  layer "$program"
done
mkdir "$work/libc"
# A program that needs no library makes ldd fail, and grep find none.
{ ldd "$PROGRAMS/executor" 2>/dev/null | grep -oE '/[^ ]+' || true; } | while read -r library; do
  install -D -m 755 "$(realpath "$library")" "$work/libc$library"
done
layer libc

images=()
# image NAME USER LAYER…
image() {
  local name=$1 user=$2 part ids=() layers=() bytes=0 config digest command=''
  shift 2
  for part in users "$@"; do
    ids+=("\"sha256:$(cat "$work/layer.$part")\"")
    layers+=("\"$(cat "$work/layer.$part").tar\"")
    bytes=$((bytes + $(stat -c %s "$archive/$(cat "$work/layer.$part").tar")))
  done
  if [ "$name" != durward ]; then command="\"Cmd\":[\"-config\",\"/etc/durward/$name.yaml\"],"; fi
  config=$(IFS=,; printf '{"architecture":"%s","os":"linux","created":"%s","config":{"User":"%s",%s"Entrypoint":["/usr/lib/durward/%s"]},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
    "$arch" "$created" "$user" "$command" "$name" "${ids[*]}")
  digest=$(sha256sum <<<"$config" | cut -d' ' -f1)
  echo "$config" >"$archive/$digest.json"
  images+=("$(IFS=,; printf '{"Config":"%s.json","RepoTags":["durward/%s:%s"],"Layers":[%s]}' "$digest" "$name" "$tag" "${layers[*]}")")
  printf 'image durward/%s:%s  %s MiB  sha256:%s\n' "$name" "$tag" "$(((bytes + 524288) / 1048576))" "$digest"
}
image audit 60731:60731 audit
image vault 60732:60732 vault
image executor 60733:60733 libc durward-inspect executor
image gateway 60734:60734 gateway
image egress 60735:60735 egress
# People's program, and what makes, renews and backs up what the others have: it is started for that alone.
image durward 60737:60737 libc durward-inspect executor vault egress audit durward
(IFS=,; echo "[${images[*]}]") >"$archive/manifest.json"
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=gnu -C "$archive" -cf "$out/durward.tar" .
(cd "$out" && sha256sum durward.tar >SHA256SUMS)
echo "$out/durward.tar: $(($(stat -c %s "$out/durward.tar") / 1048576)) MiB in all"
