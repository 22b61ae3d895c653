// Package postgres holds the tests of audit and the vault on a real PostgreSQL server: scripts/real-postgres.sh.
package postgres
