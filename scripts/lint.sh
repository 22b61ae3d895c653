#!/usr/bin/env bash
# The contract, generated code, formatting, modules on their own, and golangci-lint.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
PATH=$(scripts/tools.sh generate):$(scripts/tools.sh lint):$PATH
step() { echo "lint: $*"; }

step contract
buf lint
buf format --diff --exit-code >/dev/null || { echo "proto/ is not formatted: buf format -w" >&2; exit 1; }
if git rev-parse -q --verify origin/main >/dev/null; then
  buf breaking --against '.git#branch=origin/main' || exit 1
fi
scripts/generate.sh --check

step formatting
unformatted=$(git ls-files '*.go' | grep -v '^proto/gen/' | xargs gofmt -l)
[ -z "$unformatted" ] || { echo "not gofmt-ed: $unformatted" >&2; exit 1; }

# A module is a trust boundary: each must stand on its own go.mod, without the workspace. Where it selects the versions by itself that
# all select together, what compiles in the workspace compiles alone.
mapfile -t packages < <(scripts/modules.sh | sed 's|.*|./&/...|')
versions() { go list -deps -f '{{with .Module}}{{if not .Replace}}{{.Path}} {{.Version}}{{end}}{{end}}' "$@" | sort -u; }
together=$(versions "${packages[@]}")
for module in $(scripts/modules.sh); do
  step "$module alone"
  (cd "$module" && export GOWORK=off && alone=$(versions ./...) && ! comm -23 <(echo "$alone") <(echo "$together") | grep . && GOFLAGS=-mod=mod go mod tidy -diff >/dev/null) ||
    { echo "$module does not stand alone: cd $module && GOWORK=off go mod tidy" >&2; exit 1; }
done

# All modules at once, so that what they share is looked at once; tags add files and take none away here, so that one look
# with all of them sees everything.
tags=grpcnotrace,$(git grep -hE '^//go:build [a-z]+$' -- '*.go' | cut -d" " -f2 | sort -u | paste -sd,)
step golangci-lint
golangci-lint run --allow-parallel-runners --build-tags "$tags" "${packages[@]}"

# Files that take the place of shipped ones are in no module.
for files in weak conformance/overlay; do
  build=${files%/*}
  step "$build builds"
  go run ./deploy/e2e/cmd/programs -overlay ".cache/$build.overlay" "$build"
  # go vet enters the folder of each package, so a package that is in the overlay alone needs an empty one.
  mapfile -t folders < <(git ls-files "deploy/e2e/$files/testdata/*.go" | sed -E "s,^deploy/e2e/$files/testdata/(.*)/[^/]+$,./\1," | sort -u)
  made=()
  for folder in "${folders[@]}"; do
    [ -d "$folder" ] || { mkdir "$folder" && made+=("$folder"); }
  done
  status=0
  go vet -overlay ".cache/$build.overlay" "${folders[@]}" || status=1
  [ ${#made[@]} = 0 ] || rmdir "${made[@]}"
  [ $status = 0 ] || exit 1
done

step tests
(cd scripts/tools/lint && GOWORK=off go test ./...)
testvet -tags "$tags" -sleeps -sleepers durward.internal/deploy/e2e/drill "${packages[@]}"

step documents
scripts/check-docs.sh

step shell
. scripts/package.sh
package shellcheck shellcheck
git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck
unhelpful=$(grep -l '^#!' scripts/*.sh | xargs grep -L '^\. "$(dirname "$0")/help.sh"$' || true)
[ -z "$unhelpful" ] || { echo "-h gives no help, since scripts/help.sh is not sourced: $unhelpful" >&2; exit 1; }
