# Sourced: puts digests of what tests read beside their own modules into the environment, which Go's test cache takes as inputs.
# shellcheck shell=bash
digest() { xargs -0 sha256sum | sha256sum | cut -c1-32; }
DURWARD_OUTSIDE=$(git ls-files -z deploy/config deploy/systemd deploy/e2e/engine deploy/e2e/fakegpu scripts/version.sh | digest)
DURWARD_TRANSCRIPTS=$(git ls-files -z services/operator/cmd/durward/testdata | digest)
export DURWARD_OUTSIDE DURWARD_TRANSCRIPTS
if [ -n "${CORPORA:-}" ]; then
  [ -f "$CORPORA/MANIFEST.tsv" ] || { echo "CORPORA names no folder with corpora: there is no $CORPORA/MANIFEST.tsv" >&2; exit 1; }
  CORPORA=$(cd "$CORPORA" && pwd)
  CORPORA_DIGEST=$(cd "$CORPORA" && find . -type f -print0 | sort -z | digest)
  export CORPORA CORPORA_DIGEST
fi
