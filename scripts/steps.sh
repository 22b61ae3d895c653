#!/usr/bin/env bash
# Runs the steps of scripts/steps.tsv in order, prints what each took beside its budget, and keeps that in .cache/times.
#   scripts/steps.sh ci           what decides whether work lands: sampled sizes
#   scripts/steps.sh full         everything at full size; a step that outgrows its budget fails
#   scripts/steps.sh full drill   these steps alone
#   scripts/steps.sh table        writes the last times into .github/CONTRIBUTING.md
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
mode=${1:-ci}
shift || true
times=.cache/times
mkdir -p "$times"

if [ "$mode" = table ]; then
  {
    echo '| step | what it runs | size in `.ci/run` | took | size in `make full` | took |'
    echo '|---|---|---|---|---|---|'
    grep -v '^#' scripts/steps.tsv | while IFS=$'\t' read -r step _ _ what ci full; do
      took() { if [ -f "$times/$1.$step" ]; then echo "$(cat "$times/$1.$step") s"; else echo –; fi; }
      echo "| \`make $step\` | $what | $ci | $(took ci) | $full | $(took full) |"
    done
  } >"$times/table"
  sed -i -e '/<!-- tests:begin -->/,/<!-- tests:end -->/{/<!-- tests:begin -->/{p;r '"$times/table"'
};/<!-- tests:end -->/!d}' .github/CONTRIBUTING.md
  exit
fi

case $mode in
  ci)
    # The unit tests run once, under the race detector; samples are those of the commit.
    # A control looks at its test, which a commit seldom changes: a third of them are tried.
    # The browser is slow to start on two busy cores, package and Compose take minutes each: make real and make full have them.
    export RACE=1 CONTROLS=3 FUZZ=services/inspector REAL_SKIP='^TestBrowser$' REAL_PARTS='clients postgres systemd docker process sandbox gpu layout terminal syslog'
    DURWARD_SEED=$((16#$(git rev-parse --short=12 HEAD | cut -c1-12)))
    export DURWARD_SEED
    echo "=== DURWARD_SEED=$DURWARD_SEED"
    # Thousands of short processes fault their memory in page by page, which is dear on a virtual machine: huge pages took a third of the
    # processor time out of compiling. Users' machines mostly have them where a program asks, and Go's ask for none.
    pages=/sys/kernel/mm/transparent_hugepage/enabled
    if [ -w "$pages" ]; then
      before=$(sed -E 's/.*\[(.*)\].*/\1/' "$pages")
      if echo always >"$pages"; then trap 'echo "$before" >"$pages"' EXIT; fi
    fi
    ;;
  full) export DURWARD_FULL=1 ;;
  *) echo "scripts/steps.sh knows ci, full and table, not $mode" >&2; exit 2 ;;
esac
began=$SECONDS outgrown=()
while IFS=$'\t' read -r step ci full _; do
  budget=$ci
  [ "$mode" = ci ] || budget=$full
  [ "$budget" -gt 0 ] || continue
  [ $# = 0 ] || [[ " $* " == *" $step "* ]] || continue
  started=$SECONDS
  echo "=== make $step"
  make --no-print-directory "$step" </dev/null
  took=$((SECONDS - started))
  echo "$took" >"$times/$mode.$step"
  # A step that fails for want of room says so nowhere else.
  echo "=== make $step: $took s of $budget s; free: $(df -h --output=avail . | tail -1 | tr -d ' ')"
  [ "$took" -le "$budget" ] || outgrown+=("$step")
done < <(grep -v '^#' scripts/steps.tsv)
echo "=== $mode: $((SECONDS - began)) s"
if [ ${#outgrown[@]} -gt 0 ]; then
  echo "outgrew their budgets in scripts/steps.tsv: ${outgrown[*]}" >&2
  # On a machine that is busy or new, times say little; what lands is decided by what the steps found.
  [ "$mode" = ci ] || exit 1
fi
