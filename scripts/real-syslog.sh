#!/usr/bin/env bash
# Forwarding to Debian's rsyslog over TLS, which is killed in the middle and started again. Installs rsyslog if it is missing; the test starts one of
# its own, and the host's is left alone. Arguments go to `go test`.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
scripts/install-real.sh syslog
go test -tags real,grpcnotrace -count=1 -v -run Rsyslog "$@" ./services/audit/internal/forward
