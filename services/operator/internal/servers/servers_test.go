package servers

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/downstream"
)

// TestAnEntryIsWrittenAsItIsRead: whatever an entry holds, the file says it, and what it cannot say is refused.
func TestAnEntryIsWrittenAsItIsRead(t *testing.T) {
	for name, e := range map[string]downstream.Entry{
		"a package": {
			ID: "files", NPM: &downstream.Package{Name: "@scope/x", Version: "1.2.3", Bin: "dist/index.js", Args: []string{"--a: b", "", "#c", "yes", "\u202e", `"q"`}},
			Sandbox: downstream.Sandbox{Read: []string{"/srv/a b"}, Write: []string{"/srv/w"}, Domains: []string{"*.example.com"}, MemoryMiB: 64, CPU: 0.5, Processes: 8, None: true},
			Env:     map[string]string{"A": "1", "B": "x: y"}, Credentials: map[string]string{"TOKEN": "t"}, Allow: []string{"x"},
			Tiers: map[string]optionsv1.Tier{"x": optionsv1.Tier_TIER_READ, "y": optionsv1.Tier_TIER_DESTRUCTIVE},
		},
		"a program": {ID: "p", Resources: true, Prompts: true, Images: true, Program: &downstream.Program{Path: "/usr/bin/x", Args: []string{"-v"}}},
		"a URL":     {ID: "u", URL: "https://mcp.example/mcp", Bearer: "token"},
	} {
		settled, err := Settle(e)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		before, err := Add("servers.yaml", nil, downstream.Entry{ID: "other", URL: "https://x.example/"})
		if err == nil {
			t.Errorf("%s: an entry without its defaults is written", name)
		}
		other, err := Settle(downstream.Entry{ID: "other", URL: "https://x.example/"})
		if err == nil {
			before, err = Add("servers.yaml", nil, other)
		}
		if err != nil {
			t.Fatal(err)
		}
		after, err := Add("servers.yaml", before, settled)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, item(settled))
			continue
		}
		entries, err := downstream.ReadFile("servers.yaml", after)
		if err != nil {
			t.Fatal(err)
		}
		found, _ := State{Entries: entries}.Entry(e.ID)
		if diff := cmp.Diff(settled, found); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		without, err := Remove(after, e.ID)
		if err != nil || string(without) != string(before) {
			t.Errorf("%s: taken away again: %v\n%s", name, err, without)
		}
	}
	if _, err := Settle(downstream.Entry{ID: "a_b", URL: "https://x.example/"}); err == nil || !strings.HasPrefix(err.Error(), "a server's id") {
		t.Errorf("an id that is none: %v", err)
	}
}

func TestFromFile(t *testing.T) {
	t.Setenv("PATH", "/usr/bin:/bin")
	for name, c := range map[string]struct {
		raw  string
		want map[string]downstream.Entry
		note string
	}{
		"Claude Desktop": {
			`{"mcpServers":{"Git Hub":{"command":"npx","args":["-y","@x/server-github@1.2.3","--v"],"env":{"GITHUB_TOKEN":"ghp_secret","LOG":"debug","MYSQL_PASS":"hunter2","REDIS_PWD":"x1","JWT":"x2","WHO":"ghp_0123456789abcdefghijABCDEFGHIJ012345","ASK":"${input:ask}"}}}}`,
			map[string]downstream.Entry{"Git Hub": {
				ID: "git-hub", NPM: &downstream.Package{Name: "@x/server-github", Version: "1.2.3", Args: []string{"--v"}},
				Env: map[string]string{"LOG": "debug"}, Credentials: map[string]string{"GITHUB_TOKEN": "git-hub-github-token", "MYSQL_PASS": "git-hub-mysql-pass", "REDIS_PWD": "git-hub-redis-pwd", "JWT": "git-hub-jwt", "WHO": "git-hub-who", "ASK": "git-hub-ask"},
			}}, "GITHUB_TOKEN is not copied",
		},
		"VS Code": {
			"{\n  // mine\n\"servers\":{\"sh\":{\"command\":\"true\",\"sandbox\":{\"filesystem\":{\"allowWrite\":[\"/w\"]},\"network\":{\"allowedDomains\":[\"x.example\"]}}}},\"inputs\":[]}",
			map[string]downstream.Entry{"sh": {
				ID: "sh", Program: &downstream.Program{Path: "/usr/bin/true"},
				Sandbox: downstream.Sandbox{Write: []string{"/w"}, Domains: []string{"x.example"}},
			}}, "",
		},
		"as people write them": {
			"\ufeff{\"mcpServers\":{/* \"x\": {},\n */ \"sh\":{\"command\":\"true\", // mine\n\"args\":[\"//a,]\",],\"env\":{\"PORT\":8080,\"FAST\":true,\"GONE\":null,\"APP_TOKEN\":12345,},},},}",
			map[string]downstream.Entry{"sh": {
				ID: "sh", Program: &downstream.Program{Path: "/usr/bin/true", Args: []string{"//a,]"}},
				Env: map[string]string{"PORT": "8080", "FAST": "true"}, Credentials: map[string]string{"APP_TOKEN": "sh-app-token"},
			}}, "APP_TOKEN is not copied",
		},
		"a package by an option": {
			`{"mcpServers":{"a":{"command":"npx","args":["-y","--package=@x/a@1.0.0","a","--v"]},"b":{"command":"npx","args":["-p","@x/b@1.0.0","b"]}}}`,
			map[string]downstream.Entry{
				"a": {ID: "a", NPM: &downstream.Package{Name: "@x/a", Version: "1.0.0", Args: []string{"--v"}}},
				"b": {ID: "b", NPM: &downstream.Package{Name: "@x/b", Version: "1.0.0", Args: []string{}}},
			}, "",
		},
		"Cursor, elsewhere": {
			`{"mcpServers":{"r":{"url":"https://r.example/mcp","headers":{"Authorization":"Bearer secret"}}}}`,
			map[string]downstream.Entry{"r": {ID: "r", URL: "https://r.example/mcp", Bearer: "r-token"}}, "headers are not copied",
		},
		"Windsurf, elsewhere": {
			`{"mcpServers":{"r":{"serverUrl":"https://r.example/mcp","headers":{"X":"y"},"disabledTools":["wipe"],"disabled":false}}}`,
			map[string]downstream.Entry{"r": {ID: "r", URL: "https://r.example/mcp", Bearer: "r-token"}}, "not taken over: disabled, disabledTools",
		},
		"Gemini CLI, elsewhere": {
			`{"mcpServers":{"r":{"httpUrl":"https://r.example/mcp","url":"https://r.example/sse","timeout":5000}}}`,
			map[string]downstream.Entry{"r": {ID: "r", URL: "https://r.example/mcp"}}, "not taken over: timeout",
		},
		"Gemini CLI, in a folder": {
			`{"mcpServers":{"r":{"command":"./bin/true","cwd":"/usr","env":{"ASK":"$MY_VALUE","PRICE":"$5"}}}}`,
			map[string]downstream.Entry{"r": {
				ID: "r", Program: &downstream.Program{Path: "/usr/bin/true"}, Env: map[string]string{"PRICE": "$5"}, Credentials: map[string]string{"ASK": "r-ask"},
			}}, "its cwd is not taken over",
		},
		"VS Code, with something denied": {
			`{"servers":{"r":{"command":"true","sandbox":{"filesystem":{"allowRead":["/srv"],"denyRead":["/srv/keys"]},"network":{"deniedDomains":["x.example"]}}}}}`,
			map[string]downstream.Entry{"r": {
				ID: "r", Program: &downstream.Program{Path: "/usr/bin/true"}, Sandbox: downstream.Sandbox{Read: []string{"/srv"}},
			}}, "what its sandbox denies is not taken over, allow nothing that holds it: /srv/keys, x.example",
		},
		"VS Code, with what is not known of a sandbox": {
			`{"servers":{"r":{"command":"true","dev":{},"sandbox":{"filesystem":{"allowRead":["/srv"],"allowExec":["/x"]},"network":{},"readOnly":true,"limits":{"cpu":1},"gpu":{}}}}}`,
			map[string]downstream.Entry{"r": {
				ID: "r", Program: &downstream.Program{Path: "/usr/bin/true"}, Sandbox: downstream.Sandbox{Read: []string{"/srv"}},
			}}, "not taken over: dev, sandbox.filesystem.allowExec, sandbox.gpu, sandbox.limits.cpu, sandbox.readOnly",
		},
		"VS Code, with a file of variables": {
			`{"servers":{"r":{"type":"stdio","command":"true","envFile":"${workspaceFolder}/.env"}}}`,
			map[string]downstream.Entry{"r": {ID: "r", Program: &downstream.Program{Path: "/usr/bin/true"}}}, "its envFile is not read",
		},
		"the registry": {
			`{"name":"io.example/files","packages":[{"registryType":"oci","identifier":"x"},{"registryType":"npm","identifier":"@x/files","version":"1.0.0",
			"packageArguments":[{"type":"named","name":"--root","value":"/srv"},{"type":"positional","name":"dir","isRequired":true}],
			"environmentVariables":[{"name":"API","isSecret":true},{"name":"TOKEN","value":"x3"},{"name":"HUB","default":"hf_0123456789abcdefghij"},{"name":"BASE_URL","default":"https://x.example"},{"name":"DB_PASS"},{"name":"DB_HOST","isRequired":true},{"name":"API_BASE","value":"https://{tenant}.example"},{"name":"MODE","value":null,"default":"fast"},{"name":"PORT","default":8080},{"name":"GONE","default":null}]}]}`,
			map[string]downstream.Entry{"io.example/files": {
				ID: "files", NPM: &downstream.Package{Name: "@x/files", Version: "1.0.0", Args: []string{"--root=/srv"}},
				Env: map[string]string{"MODE": "fast", "PORT": "8080", "BASE_URL": "https://x.example"}, Credentials: map[string]string{"API": "files-api", "TOKEN": "files-token", "HUB": "files-hub"},
			}}, "its argument dir has no value yet: give it behind --\n" +
				"API is not copied: store it with durward credential add files-api --variable API, then durward credential grant files-api --server files\n" +
				"TOKEN is not copied: store it with durward credential add files-token --variable TOKEN, then durward credential grant files-token --server files\n" +
				"HUB is not copied: store it with durward credential add files-hub --variable HUB, then durward credential grant files-hub --server files\n" +
				"its variable DB_HOST has no value yet: give it by --env DB_HOST=VALUE\nits variable API_BASE has no value yet: give it by --env API_BASE=VALUE",
		},
		"the registry, with two packages": {
			`{"name":"io.example/files","packages":[{"registryType":"npm","identifier":"@x/files","version":"1.0.0"},{"registryType":"npm","identifier":"@x/other","version":"2.0.0"}]}`,
			map[string]downstream.Entry{"io.example/files": {ID: "files", NPM: &downstream.Package{Name: "@x/files", Version: "1.0.0"}}},
			"the first package is taken, and not @x/other",
		},
		"the registry, elsewhere": {
			`{"name":"io.example/r","remotes":[{"type":"sse","url":"https://old"},{"type":"streamable-http","url":"https://r.example/mcp"}]}`,
			map[string]downstream.Entry{"io.example/r": {ID: "r", URL: "https://r.example/mcp"}}, "",
		},
	} {
		found, err := FromFile([]byte(c.raw), "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, notes := map[string]downstream.Entry{}, ""
		for key, f := range found {
			if f.Problem != nil {
				t.Errorf("%s: %v", name, f.Problem)
			}
			got[key], notes = f.Entry, notes+strings.Join(f.Notes, "\n")
		}
		if diff := cmp.Diff(c.want, got); diff != "" || !strings.Contains(notes, c.note) || strings.Contains(notes, "ghp_") {
			t.Errorf("%s: %s\n%s", name, diff, notes)
		}
	}
	for name, raw := range map[string]string{
		"no version": `{"mcpServers":{"x":{"command":"npx","args":["-y","@x/y"]}}}`, "a range": `{"mcpServers":{"x":{"command":"npx","args":["@x/y@^1.0.0"]}}}`,
		"a container": `{"mcpServers":{"x":{"command":"docker","args":["run","x"]}}}`, "uvx": `{"mcpServers":{"x":{"command":"uvx","args":["x"]}}}`,
		"no program": `{"mcpServers":{"x":{"command":"no-such-program-here"}}}`, "nothing": `{"mcpServers":{"x":{}}}`,
		"a secret behind an option": `{"mcpServers":{"x":{"command":"npx","args":["@x/y@1.0.0","--api-key=hunter2"]}}}`,
		"a known secret":            `{"mcpServers":{"x":{"command":"true","args":["ghp_0123456789abcdefghijABCDEFGHIJ012345"]}}}`,
		"what VS Code asks for":     `{"servers":{"x":{"command":"true","args":["${input:key}"]}}}`,
		"what Gemini CLI fills in":  `{"mcpServers":{"x":{"command":"true","args":["$MY_FOLDER"]}}}`,
		"a URL to fill in":          `{"name":"x","remotes":[{"type":"streamable-http","url":"https://r.example/{tenant}/mcp"}]}`,
		"a transport of old":        `{"mcpServers":{"x":{"type":"sse","url":"https://r.example/sse"}}}`,
		"a secret in a URL":         `{"mcpServers":{"x":{"url":"https://r.example/mcp?key=9f8e7d6c5b4a39281706"}}}`,
	} {
		if found, err := FromFile([]byte(raw), ""); err != nil || found["x"].Problem == nil {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	for name, raw := range map[string]string{"no JSON": "servers:", "no servers": "{}", "a container alone": `{"name":"x","packages":[{"registryType":"oci","identifier":"x"}]}`} {
		if _, err := FromFile([]byte(raw), ""); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestWhatIsNamedHasTheGivenID: the commands that the notes name are those for the server as it is called here.
func TestWhatIsNamedHasTheGivenID(t *testing.T) {
	variable := "API_TOKEN_" + strings.Repeat("X", 54)
	found, err := FromFile([]byte(`{"mcpServers":{"42":{"command":"true","env":{"TOKEN":"a","`+variable+`":"b"}},"far":{"url":"https://r.example/mcp","headers":{"X":"y"}}}}`), "mine")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"TOKEN": "mine-token", variable: "mine-api-token-" + strings.Repeat("x", 64-len("mine-api-token-"))}
	if diff := cmp.Diff(want, found["42"].Entry.Credentials); diff != "" || !strings.HasSuffix(found["42"].Notes[0], "--server mine") {
		t.Errorf("%s%q", diff, found["42"].Notes)
	}
	if _, err := Settle(found["42"].Entry); err != nil {
		t.Error(err)
	}
	if e := found["far"].Entry; e.ID != "mine" || e.Bearer != "mine-token" {
		t.Errorf("%+v", e)
	}
}

func TestIDs(t *testing.T) {
	for name, want := range map[string]string{
		"@modelcontextprotocol/server-filesystem": "filesystem", "@playwright/mcp": "playwright", "github-mcp-server": "github", "mcp-server-git": "git",
		"My_Server!": "my", "42": "", "x": "x", strings.Repeat("a", 40): strings.Repeat("a", 32),
	} {
		if got := IDOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// npm stands in for npm: it locks and installs what it is told to.
func npm(lock, script string) NPM {
	return func(_ context.Context, folder string, args ...string) ([]byte, error) {
		if !strings.Contains(strings.Join(args, " "), "--ignore-scripts") {
			return nil, errors.New("it would run scripts")
		}
		if args[0] == "install" {
			return nil, os.WriteFile(filepath.Join(folder, "package-lock.json"), []byte(lock), 0o600)
		}
		at := filepath.Join(folder, "node_modules", "@x", "y")
		return nil, errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "index.js"), []byte(script), 0o600))
	}
}

func TestInstall(t *testing.T) {
	p := downstream.Package{Name: "@x/y", Version: "1.2.3"}
	const good = `{"lockfileVersion":3,"packages":{"":{},"node_modules/@x/y":{"version":"1.2.3","integrity":"sha512-AAAA"},"node_modules/z":{"version":"1.0.0","integrity":"sha512-BBBB"}}}`
	packages := t.TempDir()
	folder, digest, err := Install(t.Context(), npm(good, "one"), packages, p)
	if err != nil || folder != filepath.Join(packages, "@x+y@1.2.3") {
		t.Fatalf("%s, %v", folder, err)
	}
	if _, again, err := Install(t.Context(), npm("", "two"), packages, p); err != nil || again != digest {
		t.Errorf("what is there is fetched again: %v", err)
	}
	if _, other, err := Install(t.Context(), npm(good, "two"), t.TempDir(), p); err != nil || other == digest {
		t.Errorf("another content has the same digest: %v", err)
	}
	for name, change := range map[string][2]string{
		"another version":    {`"version":"1.2.3"`, `"version":"1.2.4"`},
		"no digest":          {`"integrity":"sha512-BBBB"`, `"resolved":"git+ssh://x"`},
		"a weak digest":      {"sha512-BBBB", "sha1-BBBB"},
		"a link":             {`"integrity":"sha512-BBBB"`, `"integrity":"sha512-BBBB","link":true`},
		"a lock of long ago": {`"lockfileVersion":3`, `"lockfileVersion":1`},
	} {
		packages := t.TempDir()
		if _, _, err := Install(t.Context(), npm(strings.Replace(good, change[0], change[1], 1), "one"), packages, p); err == nil {
			t.Errorf("%s is installed", name)
		}
		if left, _ := os.ReadDir(packages); len(left) > 0 {
			t.Errorf("%s leaves %v", name, left)
		}
	}
}

// TestInstallIsReadable: the launcher's user reads a package that root installed with a umask that lets nobody else.
func TestInstallIsReadable(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	packages := filepath.Join(t.TempDir(), "packages")
	lock := `{"lockfileVersion":3,"packages":{"":{},"node_modules/@x/y":{"version":"1.2.3","integrity":"sha512-AAAA"}}}`
	folder, digest, err := Install(t.Context(), npm(lock, "one"), packages, downstream.Package{Name: "@x/y", Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := downstream.TreeDigest(folder); err != nil || again != digest {
		t.Errorf("the digest is another one than what was installed has: %v", err)
	}
	if err := filepath.WalkDir(packages, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		want := os.FileMode(0o644)
		if d.IsDir() {
			want = 0o755
		}
		if info, err := d.Info(); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v; %v", at, info.Mode().Perm(), want, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAccept(t *testing.T) {
	e, err := Settle(downstream.Entry{ID: "x", URL: "https://x.example/", Tiers: map[string]optionsv1.Tier{"look": optionsv1.Tier_TIER_READ}})
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]downstream.Role{"/uri": downstream.RoleURL}
	p := downstream.Pinned{Tools: []downstream.Tool{{Name: "act"}, {Name: "look"}, {Name: downstream.ReadResource, Tier: optionsv1.Tier_TIER_READ, Roles: roles}}}
	if err := Accept(&p, e); err != nil || p.Tools[2].Tier != optionsv1.Tier_TIER_READ || len(p.Tools[2].Roles) != 1 || p.Tools[0].Roles != nil || p.Tools[0].Tier != optionsv1.Tier_TIER_WRITE || p.Tools[1].Tier != optionsv1.Tier_TIER_READ || p.EntryDigest == [32]byte{} {
		t.Errorf("%+v, %v", p, err)
	}
	input := json.RawMessage(`{"properties":{"url":{"type":"string"},"a/b":{"type":"string"}},"type":"object"}`)
	for pointer, want := range map[string]string{"/url": "", "/uri": "look has no argument uri", "/a~1b": "look has no argument a~1b"} {
		e := e
		e.Roles = map[string]map[string]downstream.Role{"look": {pointer: downstream.RoleURL}}
		p := downstream.Pinned{Tools: []downstream.Tool{{Name: "act"}, {Name: "look", Input: input}}}
		if err := Accept(&p, e); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("the role of %s: %v", pointer, err)
		}
	}
	p.Tools = p.Tools[:1]
	if err := Accept(&p, e); err == nil {
		t.Error("a tier of a tool that there is not is taken")
	}
}
