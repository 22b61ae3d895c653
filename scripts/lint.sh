#!/usr/bin/env bash
# The contract, generated code, formatting, modules on their own, and golangci-lint.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$(scripts/tools.sh generate):$(scripts/tools.sh lint):$PATH
export GOFLAGS=-trimpath
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

# A module is a trust boundary: each must stand on its own go.mod, without the workspace. Its packages are compiled; programs are
# linked by the tests that start them.
for module in $(scripts/modules.sh); do
  step "$module alone"
  (cd "$module" && GOWORK=off GOFLAGS="-mod=readonly -trimpath" CGO_ENABLED=0 go list -export ./... >/dev/null && GOWORK=off GOFLAGS=-mod=mod go mod tidy -diff >/dev/null) ||
    { echo "$module does not stand alone: cd $module && GOWORK=off go mod tidy" >&2; exit 1; }
done

# All modules at once, so that what they share is looked at once; tags add files and take none away here, so that one look
# with all of them sees everything.
mapfile -t packages < <(scripts/modules.sh | sed 's|.*|./&/...|')
tags=$(git grep -hE '^//go:build [a-z]+$' -- '*.go' | cut -d' ' -f2 | sort -u | paste -sd,)
step golangci-lint
CGO_ENABLED=0 golangci-lint run --allow-parallel-runners --build-tags "$tags" "${packages[@]}"

# Files that take the place of shipped ones are in no module.
for build in weak conformance; do
  step "$build builds"
  go run ./deploy/e2e/cmd/programs -overlay ".cache/$build.overlay" "$build"
  # go vet enters the folder of each package, so a package that is in the overlay alone needs an empty one.
  mapfile -t folders < <(git ls-files "deploy/e2e/$build/*.go" | sed -nE "s,^deploy/e2e/$build/(overlay/)?((gateway|services)/.*)/[^/]+$,./\2,p" | sort -u)
  made=()
  for folder in "${folders[@]}"; do
    [ -d "$folder" ] || { mkdir "$folder" && made+=("$folder"); }
  done
  status=0
  CGO_ENABLED=0 go vet -overlay ".cache/$build.overlay" "${folders[@]}" || status=1
  [ ${#made[@]} = 0 ] || rmdir "${made[@]}"
  [ $status = 0 ] || exit 1
done

step tests
(cd scripts/tools/lint && GOWORK=off CGO_ENABLED=0 go test ./...)
CGO_ENABLED=0 testvet -tags "$tags" -sleeps -sleepers durward.internal/deploy/e2e/drill "${packages[@]}"

step documents
scripts/check-docs.sh

step shell
command -v shellcheck >/dev/null ||
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends shellcheck; } >/dev/null
git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck
