// Package postgres holds the tests of audit on a real PostgreSQL server: scripts/real-postgres.sh.
package postgres
