# Sourced: puts digests of what tests read beside their own modules into the environment, which Go's test cache takes as inputs.
# shellcheck shell=bash
digest() { xargs -0 sha256sum | sha256sum | cut -c1-32; }
DURWARD_OUTSIDE=$(git ls-files -z deploy/config deploy/systemd deploy/prometheus deploy/e2e/engine deploy/e2e/fakegpu scripts/{build,inputs,test,version}.sh | digest)
DURWARD_TRANSCRIPTS=$(git ls-files -z services/operator/cmd/durward/testdata | digest)
# What the end-to-end tests compile of other modules' tests: the packages of deploy/e2e/weak's, and a server that is hostile.
DURWARD_COMPILED=$({
  git ls-files -z services/platform/platformtest services/egress/internal/child
  git ls-files 'deploy/e2e/weak/testdata/*_test.go' | sed -E 's,^deploy/e2e/weak/testdata/(.*)/[^/]+$,\1,' | sort -u | xargs git ls-files -z
} | digest)
export DURWARD_OUTSIDE DURWARD_TRANSCRIPTS DURWARD_COMPILED
if [ -n "${CORPORA:-}" ]; then
  [ -f "$CORPORA/MANIFEST.tsv" ] || { echo "CORPORA names no folder with corpora: there is no $CORPORA/MANIFEST.tsv" >&2; exit 1; }
  CORPORA=$(cd "$CORPORA" && pwd)
  CORPORA_DIGEST=$(cd "$CORPORA" && find . -type f -print0 | sort -z | digest)
  export CORPORA CORPORA_DIGEST
fi
