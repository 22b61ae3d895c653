#!/usr/bin/env bash
# Every test that needs nothing but Go: the modules' own, then the built programs end to end. What has not changed is answered
# by Go's test cache; the programs are compiled first, and their digests are inputs of the tests that start them.
#   PKG=services/vault/... RUN=TestScope   these packages, these tests     (PKG may name several folders)
#   E2E=0                                  not the built programs
#   RACE=1                                 the modules' own tests under the race detector, which needs a C compiler
# Arguments go to `go test`. The last line says how many tests passed and failed; a test's output is shown when its package failed.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
. scripts/inputs.sh
units=() ends=()
add() { # PACKAGES
  case ${1#./} in
    deploy/*) [ "${E2E:-1}" = 0 ] || ends+=("./${1#./}") ;;
    *) units+=("./${1#./}") ;;
  esac
}
if [ -n "${PKG:-}" ]; then
  for package in $PKG; do add "$package"; done
else
  while read -r module; do add "$module/..."; done < <(scripts/modules.sh)
fi
# Tests wait for timers and for the disk, so twice as many packages as processors are at work: on two, what took 206 s took 144.
plainly=(go test -p "$((2 * $(nproc)))")
test=("${plainly[@]}")
if [ "${RACE:-0}" = 1 ]; then
  command -v gcc >/dev/null || { echo "the race detector needs a C compiler: install gcc" >&2; exit 1; }
  # What debuggers read is left out: go test links without it, and to write and skip it took a seventh of the building.
  # A program that is watched waits a second before it exits, every child of a test too: what still runs then is a leak, not a race.
  # SQLite is C that was translated to Go: it is slow where it is watched, and its memory is none that the detector knows. Blowfish is what
  # the password of a signing key is stretched with: one goroutine's work on memory of its own, for seconds where it is watched.
  test=(env CGO_ENABLED=1 GORACE=atexit_sleep_ms=50 "${test[@]}" -race -gcflags=all=-dwarf=false
    "-gcflags=modernc.org/...=-race=false -d=checkptr=0 -dwarf=false" "-gcflags=golang.org/x/crypto/blowfish=-race=false -dwarf=false" -timeout 20m)
fi
{
  status=0
  if [ ${#units[@]} -gt 0 ]; then
    if [ "${RACE:-0}" = 1 ] && [ -z "${PKG:-}${RUN:-}" ]; then
      # TestScripts starts durward a hundred times and more, the others do one goroutine's work many times over: watched, they take
      # three to fifteen times as long, and show no more.
      unwatched='TestScripts|TestHeavyFiles|TestOnlySnapshotsAreAnsweredAtOnce|TestFindTriesWhereAMatchCanBegin|TestWorkGrowsWithTheText|TestPublicShapesRate|TestFalseAlarms|TestBracketsAreLinear|TestRoom|TestNothingIsCutSilently|TestTermsAreNeverFoldedAway|TestWhatIsNotNamedIsSound|TestHostileText'
      unwatched+='|TestTornWrite|TestAnAlteredBlockShows|TestAChangedByteOfTheLockOpensNothing|TestNoChangedGrantVerifies|TestNoChangedGrantIsCovered|TestNoChangedStatementVerifies|TestWhatCountsHereCountsForSSHKeygen'
      # These change the process's folder, or read files as they lie in this checkout, for which Go's cache never answers.
      unwatched+='|TestCatalogImport\w*|TestProposalsPassTheCheck|TestPrivacyDetect|TestAKeyThatIsThereIsKept|TestDocuments'
      unwatched+='|TestDialsNobody|TestGroupsDoNotKnowEachOther|TestCatalogAddFromModelRefuses|TestCatalogAddToAFolder'
      # What takes a sample takes the commit's where it is not watched. Watched it takes any, so that the cache answers for the packages
      # that a commit leaves as they are.
      sampled=$(git grep -hpE '\b((full|sampled)\.(Sample|Picks)|seeds)\(t\b' -- '*_test.go' | sed -nE 's/^func (Test\w+)\(.*/\1/p' | sort -u | paste -sd'|')
      # Without PWD, which is another in each clone: what asks for the folder it is in then asks the kernel.
      env -u DURWARD_SEED -u PWD "${test[@]}" -v -run '^(Test|Example)' -skip "^($unwatched)$" "$@" "${units[@]}" 2>&1 || status=1
      mapfile -t plain < <(git grep -lE "^func ($unwatched|$sampled)\(" -- gateway services | xargs -n1 dirname | sort -u | sed 's,^,./,')
      "${plainly[@]}" -v -run "^($unwatched|$sampled)$" "$@" "${plain[@]}" 2>&1 || status=1
    else
      run=${RUN:-}
      if [ "${RACE:-0}" = 1 ]; then run=${run:-^(Test|Example)}; fi
      "${test[@]}" -v ${run:+-run "$run"} "$@" "${units[@]}" 2>&1 || status=1
    fi
    # Watched, fuzz targets show no more: they are one goroutine's work. Apart, they also leave the rest to Go's cache, which answers for
    # them only in the same folder, since it takes that of their seeds as an input.
    if [ "${RACE:-0}" = 1 ] && [ -z "${RUN:-}" ]; then
      mapfile -t fuzzed < <(git grep -lE '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u | while read -r folder; do
        for unit in "${units[@]}"; do
          case ./$folder/ in "${unit%...}"*) echo "./$folder" && break ;; esac
        done
      done)
      if [ ${#fuzzed[@]} -gt 0 ]; then "${plainly[@]}" -v -run '^Fuzz' "$@" "${fuzzed[@]}" 2>&1 || status=1; fi
    fi
  fi
  if [ ${#ends[@]} -gt 0 ]; then
    # They wait for processes and for time to pass, so more of them go on at once than there are cores; but few enough that what a
    # user would see in seconds is seen in seconds.
    read -ra builds <<<"${PROGRAMS:-plain weak conformance}"
    if programs=$(go run ./deploy/e2e/cmd/programs "${builds[@]}"); then
      mapfile -t digests <<<"$programs"
      env -u PWD "${digests[@]}" go test -v -timeout 15m -parallel 8 ${RUN:+-run "$RUN"} "$@" "${ends[@]}" 2>&1 || status=1
    else
      status=1
    fi
  fi
  exit "$status"
} | awk '
  /^=== (RUN|PAUSE|CONT|NAME)/ || /^PASS$/ || /\[no test files\]$/ || /\[no tests to run\]$/ { next }
  /^ *--- (PASS|SKIP)/ { if ($2 == "PASS:") passed++; else { skipped++; held = held $0 "\n" } next }
  /^ *--- FAIL/ { failed++ }
  /^FAIL\t.*\[(build|setup) failed\]/ { failed++ }
  /^ok / { print; held = ""; next }
  /^FAIL/ { printf "%s", held; print; held = ""; next }
  { held = held $0 "\n" }
  END { printf "%s", held; printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : "" }'
