#!/usr/bin/env bash
# Prints the working tree's semantic version: its tag's (v1.2.3), what comes after that one (v1.2.4-devel.5+COMMIT), or
# v0.0.0-devel+COMMIT where there is no tag. scripts/version.sh DESCRIPTION reads one of `git describe --tags --long` instead.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
described=${1:-$(git describe --tags --match 'v[0-9]*' --long --always --dirty=.dirty --abbrev=12 2>/dev/null || true)}
if [[ $described =~ ^(v[0-9]+\.[0-9]+\.)([0-9]+)(-[0-9A-Za-z.-]+)?-([0-9]+)-g([0-9a-f]+(\.dirty)?)$ ]]; then
  release=${BASH_REMATCH[1]}${BASH_REMATCH[2]}${BASH_REMATCH[3]}
  if [ "${BASH_REMATCH[4]}${BASH_REMATCH[6]}" = 0 ]; then
    echo "$release"
  elif [ -n "${BASH_REMATCH[3]}" ]; then
    echo "$release.devel.${BASH_REMATCH[4]}+${BASH_REMATCH[5]}"
  else
    echo "${BASH_REMATCH[1]}$((BASH_REMATCH[2] + 1))-devel.${BASH_REMATCH[4]}+${BASH_REMATCH[5]}"
  fi
else
  echo "v0.0.0-devel${described:++$described}"
fi
