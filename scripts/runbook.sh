#!/usr/bin/env bash
# Prints the runbook: an entry for each alert of deploy/prometheus/alerts.yaml, from what the alert itself says.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
cat <<'EOF'
# Runbook

Generated from [alerts.yaml](../prometheus/alerts.yaml) (`make generate`): what each alert means, and what to do. An alert carries the same
words as annotations. Critical: nothing can be changed on the host now, or somebody should look at once. Warning: it will come to that. Info:
for knowing. What the alert fills in stands in `code`, a number as ….
EOF
awk '
  function rest(line) { sub(/^[^:]*: */, "", line); gsub(/^"|"$/, "", line); gsub(/\\"/, "\"", line); return line }
  /^      - alert:/ { name = rest($0) }
  /^        labels:/ { severity = $0; sub(/.*severity: */, "", severity); sub(/[,}].*/, "", severity) }
  /^          summary:/ { summary = rest($0) }
  /^          description:/ { description = rest($0) }
  /^          action:/ { printf "\n## %s\n\n*%s.* %s.\n\n%s\n\n**Do:** %s\n", name, toupper(substr(severity, 1, 1)) substr(severity, 2), summary, description, rest($0) }
' deploy/prometheus/alerts.yaml | sed -E 's/\{\{ \$labels\.([a-z_]+) \}\}/`\1`/g; s/\{\{[^}]*\}\}/…/g'
