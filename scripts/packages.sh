#!/usr/bin/env bash
# Makes Debian's package in bin/packages (or $1): programs, units, users, folders, manual pages, completion files, guides, an SBOM (SPDX) and the
# digests of all of it. The same commit and compiler give the same bytes. SIGNING_KEY=FILE signs the digests (SSHSIG); PROGRAMS=DIR
# takes programs that scripts/build.sh has built.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
out=${1:-bin/packages}
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools=$(scripts/tools.sh package)
if [ -z "${PROGRAMS:-}" ]; then
  PROGRAMS=$work/bin
  NVML=${NVML:-require} scripts/build.sh "$PROGRAMS"
fi
umask 022
export SOURCE_DATE_EPOCH TREE=$work/tree ARCH VERSION
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
ARCH=$(go env GOARCH)
VERSION=$("$PROGRAMS/durward" version | cut -d' ' -f2)
lib=$TREE/usr/lib
install -d "$lib/durward" "$lib/systemd/system" "$lib/sysusers.d" "$lib/tmpfiles.d" "$TREE/usr/share/doc/durward" "$TREE/usr/share/lintian/overrides"

programs=(audit auditrelay auditwitness durward durward-demo durward-inspect durward-launcher durward-list durward-notify egress executor gateway vault)
install -m 755 "${programs[@]/#/$PROGRAMS/}" "$lib/durward/"
for unit in deploy/systemd/durward*.{service,socket,timer,target}; do
  sed 's,/usr/local/lib/durward/,/usr/lib/durward/,' "$unit" >"$lib/systemd/system/${unit##*/}"
done
for kind in sysusers tmpfiles; do
  for file in deploy/systemd/"$kind"*.conf; do
    install -m 644 "$file" "$lib/$kind.d/$(basename "${file/$kind/durward}")"
  done
done

"$PROGRAMS/durward" documents "$TREE/usr/share"
# Debian's own folder for zsh is another one than that of what is installed beside packages.
mkdir "$TREE/usr/share/zsh/vendor-completions"
mv "$TREE"/usr/share/zsh/site-functions/* "$TREE/usr/share/zsh/vendor-completions/"
rmdir "$TREE/usr/share/zsh/site-functions"
gzip -9n "$TREE"/usr/share/man/man1/*.1
doc=$TREE/usr/share/doc/durward
install -m 644 deploy/docs/*.md "$doc/"
rm "$doc/CHANGELOG.md"
{
  printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: Durward\n\nFiles: *\nCopyright: the Durward authors\nLicense: Apache-2.0\n'
  printf ' On Debian systems the license is in /usr/share/common-licenses/Apache-2.0.\n Modules of others in the programs are named in sbom.spdx.json.\n'
} >"$doc/copyright"
{
  printf 'durward (%s) unstable; urgency=medium\n\n  * See CHANGELOG.gz.\n\n' "$(sed 's/^v//; s/-/~/' <<<"$VERSION")"
  printf ' -- Durward <durward@localhost>  %s\n' "$(date -uR -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc/changelog.gz"
gzip -9nc deploy/docs/CHANGELOG.md >"$doc/CHANGELOG.gz"
install -m 644 deploy/packages/lintian-overrides "$TREE/usr/share/lintian/overrides/durward"
"$tools/sbom" durward "$VERSION" "${programs[@]/#/$lib/durward/}" >"$doc/sbom.spdx.json"

(cd "$TREE" && find . -type f ! -name SHA256SUMS -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum) >"$work/sums"
install -m 644 "$work/sums" "$lib/durward/SHA256SUMS"
if [ -n "${SIGNING_KEY:-}" ]; then ssh-keygen -q -Y sign -n durward-release -f "$SIGNING_KEY" "$lib/durward/SHA256SUMS"; fi
find "$TREE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

"$tools/nfpm" package --config deploy/packages/nfpm.yaml --packager deb --target "$out/"
(cd "$out" && sha256sum ./*.deb >SHA256SUMS)
cat "$out/SHA256SUMS"
