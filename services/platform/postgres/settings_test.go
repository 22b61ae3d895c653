package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const socket = "unix:/run/postgresql/.s.PGSQL.5432,user=postgres"

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		settings Settings
		want     string
	}{
		"an unknown engine":          {Settings{Engine: "mysql"}, "database.engine"},
		"a server without an engine": {Settings{Addresses: []string{socket}}, "engine is sqlite"},
		"nothing of a server":        {Settings{Engine: Postgres}, "name and user are required"},
		"a name with quotes":         {Settings{Engine: Postgres, Addresses: []string{socket}, Name: `a"b`, User: "audit"}, "small letters"},
		"a relative password":        {Settings{Engine: Postgres, Addresses: []string{socket}, Name: "audit", User: "audit", PasswordFile: "password"}, "absolute"},
		"a socket without its user":  {Settings{Engine: Postgres, Addresses: []string{"unix:/run/postgresql/.s.PGSQL.5432"}, Name: "audit", User: "audit"}, "user=postgres"},
		"another program's socket":   {Settings{Engine: Postgres, Addresses: []string{"unix:/run/x.sock,user=postgres"}, Name: "audit", User: "audit"}, "must be like"},
		"a socket among others":      {Settings{Engine: Postgres, Addresses: []string{socket, "db:5432"}, Name: "audit", User: "audit", CA: "/ca", PasswordFile: "/p"}, "stands alone"},
		"a socket with TLS":          {Settings{Engine: Postgres, Addresses: []string{socket}, Name: "audit", User: "audit", CA: "/ca"}, "has no TLS"},
		"a network in clear":         {Settings{Engine: Postgres, Addresses: []string{"127.0.0.1:5432"}, Name: "audit", User: "audit", PasswordFile: "/p"}, "database.ca: is required"},
		"a network for everybody":    {Settings{Engine: Postgres, Addresses: []string{"db:5432"}, Name: "audit", User: "audit", CA: "/ca"}, "database.password_file: is required"},
		"no port":                    {Settings{Engine: Postgres, Addresses: []string{"db"}, Name: "audit", User: "audit", CA: "/ca", PasswordFile: "/p"}, "host:port"},
		"a URL":                      {Settings{Engine: Postgres, Addresses: []string{"postgres://db/x"}, Name: "audit", User: "audit", CA: "/ca", PasswordFile: "/p"}, "host:port"},
		"the default":                {Settings{}, ""},
		"a socket":                   {Settings{Engine: Postgres, Addresses: []string{socket}, Name: "durward_audit", User: "durward-audit"}, ""},
		"a cluster":                  {Settings{Engine: Postgres, Addresses: []string{"db1:5432", "db2:5432"}, Name: "audit", User: "audit", CA: "/ca", PasswordFile: "/p"}, ""},
	} {
		err := tc.settings.Validate()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestEnvironment: nothing that libpq would take from the environment, or from the home folder, is taken.
func TestEnvironment(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".pgpass"), []byte("*:*:*:*:stolen\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"HOME": home, "PGHOST": "evil", "PGPORT": "1", "PGUSER": "evil", "PGPASSWORD": "evil", "PGDATABASE": "evil", "PGSSLMODE": "disable",
		"PGOPTIONS": "-c synchronous_commit=off", "PGAPPNAME": "evil", "PGTARGETSESSIONATTRS": "read-only", "PGCHANNELBINDING": "disable",
	} {
		t.Setenv(name, value)
	}
	cfg, err := configure(Settings{Engine: Postgres, Addresses: []string{socket}, Name: "durward_audit", User: "audit"}, "audit")
	if err != nil {
		t.Fatal(err)
	}
	c := cfg.ConnConfig
	if c.Host != "/run/postgresql" || c.Port != 5432 || c.User != "audit" || c.Password != "" || c.Database != "durward_audit" || c.TLSConfig != nil ||
		len(c.Fallbacks) != 0 || c.RequireAuth != "none" || c.ChannelBinding != "prefer" {
		t.Errorf("%+v", c.Config)
	}
	for name, value := range c.RuntimeParams {
		if strings.Contains(value, "evil") || name == "options" {
			t.Errorf("%s=%s", name, value)
		}
	}
}

// TestCheck: files that are wrong are found before anything is opened.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", "secret\n", 0o600)
	for name, tc := range map[string]struct{ password, ca, want string }{
		"no password file":           {filepath.Join(dir, "none"), good, "password_file"},
		"a password for all to read": {write("open", "secret\n", 0o644), good, "chmod 600"},
		"an empty password":          {write("empty", "\n", 0o600), good, "one line"},
		"a line of Windows":          {write("windows", "secret\r\n", 0o600), good, "as Unix ends it"},
		"two lines":                  {write("two", "a\nb\n", 0o600), good, "one line"},
		"no authority":               {good, filepath.Join(dir, "none"), "database.ca"},
		"a file without certificate": {good, good, "holds no certificate"},
	} {
		err := Check(Settings{Engine: Postgres, Addresses: []string{"db:5432"}, Name: "audit", User: "audit", PasswordFile: tc.password, CA: tc.ca})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	if err := Check(Settings{}); err != nil {
		t.Error(err)
	}
}
