package notify

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/platformtest/testfile"
)

// write puts a file of the test's there, for its owner alone.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testfile.Write(t, path, text)
	return path
}

const base = `trust_dir: /t
tls: {certificate: /c, key: /k}
vault: {address: "127.0.0.1:7431", identity: spiffe://durward.local/vault/main}
durward: ["127.0.0.1:7430"]
`

func TestLoadRefuses(t *testing.T) {
	url := write(t, "url", "https://hooks.example.com/secret\n")
	plainURL := write(t, "plain", "http://hooks.example.com/secret\n")
	local := write(t, "local", "http://127.0.0.1:9000/secret\n")
	vault := write(t, "vault", "http://127.0.0.1:7431/secret\n")
	gateway := write(t, "gateway", "http://127.0.0.2:7430/secret\n")
	open := write(t, "open", "https://hooks.example.com/secret\n")
	must(t, os.Chmod(open, 0o644))
	two := write(t, "two", "https://hooks.example.com/secret\nhttps://hooks.example.com/secret\n")
	odd := write(t, "odd", "https://secret@hooks.example.com/\n")
	web := func(file, more string) string {
		return "destinations: [{name: x, kind: slack, url_file: " + file + more + "}]\n"
	}
	const desk = "destinations: [{name: desk, kind: desktop}]\n"
	for name, c := range map[string]struct{ text, want string }{
		"no destination":               {base, "there is none"},
		"an unknown key":               {base + "destination: []\n", "did you mean"},
		"an unknown kind":              {base + "destinations: [{name: x, kind: email}]\n", "kind: one of"},
		"no kind":                      {base + "destinations: [{name: x}]\n", "kind: one of"},
		"a bad name":                   {base + "destinations: [{name: 'a b', kind: desktop}]\n", "name:"},
		"two of one name":              {base + "destinations: [{name: x, kind: desktop}, {name: x, kind: desktop}]\n", "another one"},
		"the secret itself":            {base + "destinations: [{name: x, kind: slack, url: https://hooks.example.com/secret}]\n", "url"},
		"no file":                      {base + "destinations: [{name: x, kind: slack}]\n", "url_file"},
		"a relative file":              {base + web("secret", ""), "absolute"},
		"no such file":                 {base + web("/nonexistent/file", ""), "no such file"},
		"a key for all":                {strings.Replace(base, "key: /k", "key: "+open, 1) + desk, "tls.key"},
		"a file for all":               {base + web(open, ""), "chmod 600"},
		"two lines":                    {base + web(two, ""), "one line"},
		"a user in the URL":            {base + web(odd, ""), "user"},
		"http":                         {base + web(plainURL, ""), "https"},
		"loopback without a word":      {base + web(local, ""), "https"},
		"another port":                 {base + web(local, ", local: '127.0.0.1:9001'"), "local:"},
		"no port":                      {base + web(local, ", local: 127.0.0.1"), "local:"},
		"every address":                {base + web(local, ", local: '0.0.0.0:9000'"), "one service"},
		"Durward's vault":              {base + web(vault, ", local: '127.0.0.1:7431'"), "Durward's own"},
		"Durward's gateway":            {base + web(gateway, ", local: '127.0.0.2:7430'"), "Durward's own"},
		"a token for slack":            {base + web(url, ", token_file: "+url), "token_file"},
		"a program for slack":          {base + web(url, ", program: [/bin/true]"), "program"},
		"a URL for the desktop":        {base + "destinations: [{name: x, kind: desktop, url_file: " + url + "}]\n", "not for this kind"},
		"no program":                   {base + "destinations: [{name: x, kind: command}]\n", "program"},
		"a relative program":           {base + "destinations: [{name: x, kind: command, program: [sh]}]\n", "absolute"},
		"too many arguments":           {base + "destinations: [{name: x, kind: command, program: [/bin/sh" + strings.Repeat(", a", 40) + "]}]\n", "arguments"},
		"an endless argument":          {base + "destinations: [{name: x, kind: command, program: [/bin/sh, " + strings.Repeat("a", maxArgument+1) + "]}]\n", "bytes long"},
		"a proxy's name":               {base + desk + "proxy: proxy.example.com:3128\n", "proxy"},
		"no time of the day":           {base + desk + "quiet: [{from: '22:00', to: '25:00'}]\n", "quiet[0]"},
		"no quiet time":                {base + desk + "quiet: [{from: '22:00', to: '22:00'}]\n", "quiet[0]"},
		"too seldom":                   {base + desk + "apart: 2h\n", "apart"},
		"before it waits":              {base + desk + "gather: -1s\n", "gather"},
		"too often":                    {base + desk + "an_hour: 601\n", "an_hour"},
		"a command with more in it":    {base + desk + "command: 'durward; rm'\n", "command"},
		"a listener without a port":    {base + desk + "durward: [localhost]\n", "durward"},
		"a relative trust folder":      {strings.Replace(base, "/t\n", "t\n", 1) + desk, "trust_dir"},
		"a vault without an identity":  {strings.Replace(base, "spiffe://durward.local/vault/main", "vault", 1) + desk, "vault"},
		"too many destinations at all": {base + "destinations: [" + strings.Repeat("{name: x, kind: desktop}, ", 17) + "]\n", "at most"},
	} {
		_, err := Load(write(t, "notify.yaml", c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "/secret") || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestShippedConfiguration: the documented example is one that the program takes, with the files that it names.
func TestShippedConfiguration(t *testing.T) {
	text := testfile.Read(t, "../../../../deploy/config/notify.yaml")
	folder := t.TempDir()
	for name, secret := range map[string]string{"ntfy-url": "https://ntfy.example.com/topic", "ntfy-token": "tk_1", "mattermost-url": "http://192.168.1.5:8065/hooks/x"} {
		testfile.Write(t, filepath.Join(folder, name), secret+"\n")
	}
	cfg, err := Load(write(t, "notify.yaml", strings.ReplaceAll(string(text), "/home/alice/.durward/keys", folder)))
	must(t, err)
	if len(cfg.Destinations) != 4 || len(cfg.Quiet) != 1 || cfg.AnHour != 30 || !cfg.own(netip.MustParseAddrPort("127.0.0.1:7430")) || cfg.own(netip.MustParseAddrPort("127.0.0.1:7429")) {
		t.Errorf("%+v", cfg)
	}
}
