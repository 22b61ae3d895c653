#!/usr/bin/env bash
# Audit and the vault on Debian's PostgreSQL, which runs as a user who is not root, with TLS: the suites of their stores, a log that
# moves there and back, two audits and two vaults of which one is killed and one stopped past its lock, PostgreSQL killed among appends
# and between an approval and its use, its standby promoted, its disk full, the network cut, and the negative controls. Installs postgresql-15 if it is missing. Arguments go to
# `go test`.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. scripts/go.sh
scripts/install-real.sh postgres
# What does not name PostgreSQL is make test's.
go test -tags real,grpcnotrace -count=1 -run Postgres "$@" ./services/{audit/{cmd/audit,internal/{store,transfer,damage}},vault/internal/store}
go run ./deploy/e2e/cmd/programs -overlay .cache/weak.overlay weak >/dev/null
go test -tags real,grpcnotrace -count=1 -overlay .cache/weak.overlay -run TestWithoutTheFence "$@" ./services/audit/internal/store ./services/vault/internal/store
go test -tags real,grpcnotrace -count=1 -v "$@" ./deploy/e2e/postgres/...
