package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/rpc"
)

const (
	// patience bounds connecting, and silence of a peer to whom something was sent.
	patience = time.Second
	// connections bounds the pool.
	connections = 6
	// oldest is the oldest version of the server: since 14 it ends idle sessions and notices that a client is gone.
	oldest = 140000
)

// ErrUnsafe is wrapped by errors about a server that acknowledges what is not on a disk.
var ErrUnsafe = errors.New("the PostgreSQL server acknowledges records that are not on a disk yet")

// Check reports what is wrong with the files that the settings name.
func Check(s Settings) error {
	if !s.Shared() {
		return nil
	}
	_, err := configure(s, "check")
	return err
}

// configure makes what pgx needs of the settings alone.
func configure(s Settings, service string) (*pgxpool.Config, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	// pgx wants its configurations parsed, and parsing reads the environment. All that it could have taken from there is set below.
	cfg, err := pgxpool.ParseConfig("host=/ user=x dbname=x sslmode=disable passfile=/dev/null connect_timeout=1")
	if err != nil {
		return nil, fmt.Errorf("database: take PGSERVICE and the like out of the environment: %w", err)
	}
	c := &cfg.ConnConfig.Config
	c.Database, c.User, c.Password = s.Name, s.User, ""
	c.RuntimeParams = map[string]string{
		"application_name": "durward-" + service, "client_encoding": "UTF8", "search_path": "public",
		// A statement whose client is gone, or hangs, ends.
		"client_connection_check_interval": "1s", "statement_timeout": "4s", "lock_timeout": "1s", "idle_in_transaction_session_timeout": "2s",
	}
	c.TLSConfig, c.Fallbacks, c.SSLNegotiation, c.SSLCertMode, c.KerberosSrvName, c.KerberosSpn = nil, nil, "", "disable", "", ""
	c.MinProtocolVersion, c.MaxProtocolVersion, c.ChannelBinding = "3.0", "3.0", "prefer"
	c.RequireAuth = "scram-sha-256"
	if s.PasswordFile == "" {
		c.RequireAuth = "none" // the kernel's word
	} else {
		secret, err := keyfile.Read(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("database.password_file: %w", err)
		}
		if c.Password = strings.TrimSuffix(string(secret), "\n"); c.Password == "" || strings.ContainsAny(c.Password, "\r\n\x00") {
			return nil, fmt.Errorf("database.password_file: %s must hold one line, as Unix ends it", s.PasswordFile)
		}
	}
	var authority *x509.CertPool
	if s.CA != "" {
		pem, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, fmt.Errorf("database.ca: %w", err)
		}
		if authority = x509.NewCertPool(); !authority.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("database.ca: %s holds no certificate", s.CA)
		}
	}
	for i, address := range s.Addresses {
		at, err := parse(address)
		if err != nil {
			return nil, err
		}
		f := &pgconn.FallbackConfig{Host: at.host, Port: at.port}
		if !at.socket {
			f.TLSConfig = &tls.Config{RootCAs: authority, ServerName: at.host, MinVersion: tls.VersionTLS13}
		}
		if i == 0 {
			c.Host, c.Port, c.TLSConfig = f.Host, f.Port, f.TLSConfig
		} else {
			c.Fallbacks = append(c.Fallbacks, f)
		}
	}
	c.ConnectTimeout = patience
	c.LookupFunc = net.DefaultResolver.LookupHost
	c.DialFunc = dial
	if socket := s.Addresses[0]; config.IsUnix(socket) {
		c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return rpc.DialContext(ctx, socket) }
	}
	c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	cfg.MaxConns, cfg.MinConns = connections, 1
	return cfg, nil
}

// dial gives a connection up whose peer does not answer for what was sent.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: patience, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: patience, Interval: patience, Count: 3},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failure error
			err := raw.Control(func(fd uintptr) {
				failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int((3 * patience).Milliseconds()))
			})
			return errors.Join(err, failure)
		}}
	return d.DialContext(ctx, network, address)
}

// Database is a server's database. The caller closes the pool.
type Database struct {
	Pool *pgxpool.Pool

	// session is for connections beside the pool's.
	session *pgx.ConnConfig
	service string
}

// Open connects for a service ("audit"), and refuses a server on which an acknowledged record may not be on a disk. What a fail-over may
// lose is logged.
func Open(ctx context.Context, s Settings, service string, logger *slog.Logger) (*Database, error) {
	cfg, err := configure(s, service)
	if err != nil {
		return nil, err
	}
	first, err := pgx.ConnectConfig(ctx, cfg.ConnConfig.Copy())
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL cannot be reached: %w", err)
	}
	level, warning, err := judge(ctx, first)
	if err = errors.Join(err, first.Close(ctx)); err != nil {
		return nil, err
	}
	if warning != "" {
		logger.Warn(warning)
	}
	// A change of the server's default does not reach this process's sessions.
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = level
	cfg.ConnConfig.AfterConnect = flushes
	d := &Database{session: cfg.ConnConfig.Copy(), service: service}
	if d.Pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	return d, nil
}

// judge reads what the server promises: the level of synchronous_commit to use, and what a fail-over may lose.
func judge(ctx context.Context, conn *pgx.Conn) (level, warning string, err error) {
	var version int
	var fsync, standbys string
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('fsync'),
		current_setting('synchronous_commit'), current_setting('synchronous_standby_names')`).Scan(&version, &fsync, &level, &standbys); err != nil {
		return "", "", err
	}
	switch {
	case version < oldest:
		return "", "", fmt.Errorf("the PostgreSQL server is older than version %d, which has the idle_session_timeout that a lead needs", oldest/10000)
	case fsync != "on":
		return "", "", fmt.Errorf("%w: fsync is %s there; switch it on", ErrUnsafe, fsync)
	case level == "off":
		return "", "", fmt.Errorf("%w: synchronous_commit is off for this role or database; switch it on", ErrUnsafe)
	case standbys == "":
		warning = "PostgreSQL has no synchronous standby: if its disk is lost, or another server takes over, the records that it acknowledged " +
			"and the other did not have yet are lost, and every process that saw them refuses the older log"
	}
	if level != "remote_apply" {
		level = "on"
	}
	return level, warning, nil
}

// flushes looks on each connection: fsync can be switched off while the server runs.
func flushes(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, "SHOW fsync").ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "on" {
		return fmt.Errorf("%w: fsync is off there; switch it on", ErrUnsafe)
	}
	return nil
}

// Transient reports whether what failed may succeed later: the server cannot be reached, is starting, stopping, full or taken over. What
// a human has to put right is not.
func Transient(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		// Connections, resources, locks, and what the server's operator does.
		return slices.Contains([]string{"08", "53", "55", "57"}, said.Code[:min(2, len(said.Code))])
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return connecting || network || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}
