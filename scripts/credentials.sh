#!/usr/bin/env bash
# Makes services/platform/secret/gitleaks.json, the public shapes of credentials, anew from the rules in the Go module of
# gitleaks at the version below; the module's licence goes beside it. Run it after raising the version, and run the tests of package secret and of the vault.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
version=v8.30.1
dir=$(cd "$(mktemp -d)" && go mod download -json "github.com/zricethezav/gitleaks/v8@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
out=$PWD/services/platform/secret
(cd scripts/tools/credentials && GOWORK=off GOFLAGS=-mod=readonly go run . "$dir/config/gitleaks.toml" "$version") >"$out/gitleaks.json.new"
mv "$out/gitleaks.json.new" "$out/gitleaks.json"
{
  printf 'gitleaks.json is derived from gitleaks (https://github.com/gitleaks/gitleaks), whose licence is:\n\n'
  cat "$dir/LICENSE"
} >"$out/gitleaks.LICENCE"
