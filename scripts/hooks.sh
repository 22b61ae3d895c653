#!/usr/bin/env bash
# Installs a Git hook that looks at what a commit changes: format, vet of the modules concerned, documents. It takes seconds;
# `git commit --no-verify` goes without. As `scripts/hooks.sh check` it is that hook.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
if [ "${1:-}" != check ]; then
  hook=$(git rev-parse --git-path hooks/pre-commit)
  mkdir -p "$(dirname "$hook")"
  if [ -e "$hook" ] && ! grep -q scripts/hooks.sh "$hook"; then
    echo "there is another hook already: $hook" >&2
    exit 1
  fi
  printf '#!/bin/sh\nexec scripts/hooks.sh check\n' >"$hook"
  chmod +x "$hook"
  echo "Before each commit: scripts/hooks.sh check"
  exit
fi

mapfile -t changed < <(git diff --cached --name-only --diff-filter=d -- '*.go' ':!proto/gen')
if [ ${#changed[@]} -gt 0 ]; then
  unformatted=$(gofmt -l "${changed[@]}")
  [ -z "$unformatted" ] || { echo "not gofmt-ed: $unformatted" >&2; exit 1; }
  while read -r module; do
    if printf '%s\n' "${changed[@]}" | grep -q "^$module/"; then
      (cd "$module" && go vet ./...)
    fi
  done < <(scripts/modules.sh)
fi
scripts/check-docs.sh
