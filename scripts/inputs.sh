# Sourced: puts digests of what tests read beside their own modules into the environment, which Go's test cache takes as inputs.
# shellcheck shell=bash
# The files below paths; those of a source archive that lies in no checkout are the ones that are there.
files() { if [ -e .git ]; then git ls-files -z "$@"; else find "$@" -type f -print0 | LC_ALL=C sort -z; fi; }
digest() { xargs -0 sha256sum | sha256sum | cut -c1-32; }
DURWARD_OUTSIDE=$(files deploy/config deploy/systemd deploy/prometheus deploy/e2e/engine deploy/e2e/fakegpu scripts/{build,help,inputs,test,version}.sh | digest)
DURWARD_TRANSCRIPTS=$(files services/operator/cmd/durward/testdata | digest)
# What the end-to-end tests compile of other modules' tests: the packages of deploy/e2e/weak's, and a server that is hostile.
DURWARD_COMPILED=$({
  files services/platform/platformtest services/egress/internal/child
  files deploy/e2e/weak/testdata | tr '\0' '\n' | sed -nE 's,^deploy/e2e/weak/testdata/(.*)/[^/]+_test\.go$,\1,p' | sort -u | while read -r folder; do files "$folder"; done
} | digest)
export DURWARD_OUTSIDE DURWARD_TRANSCRIPTS DURWARD_COMPILED
if [ -n "${CORPORA:-}" ]; then
  [ -f "$CORPORA/MANIFEST.tsv" ] || { echo "CORPORA names no folder with corpora: there is no $CORPORA/MANIFEST.tsv" >&2; exit 1; }
  CORPORA=$(cd "$CORPORA" && pwd)
  CORPORA_DIGEST=$(cd "$CORPORA" && find . -type f -print0 | sort -z | digest)
  export CORPORA CORPORA_DIGEST
fi
