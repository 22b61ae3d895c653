package unit

import (
	"embed"
	"errors"
	"flag"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/input"
)

var update = flag.Bool("update", false, "write testdata anew")

//go:embed testdata/*.service
var golden embed.FS

func entry(argv ...string) *catalog.Service {
	return &catalog.Service{
		ID: "coder", Driver: catalog.DriverProcess, RunAs: "models", Port: 8001, Argv: argv,
		StartTimeoutS: 600, StopTimeoutS: 30,
	}
}

func TestRenderRefuses(t *testing.T) {
	good := []string{"/usr/bin/llama-server", "--port", "8001"}
	cases := []struct {
		name   string
		change func(*catalog.Service)
		want   string
	}{
		{"a unit already", func(s *catalog.Service) { s.Driver = catalog.DriverSystemd }, "only a program"},
		{"no program", func(s *catalog.Service) { s.Argv = nil }, "only a program"},
		{"an id with a path", func(s *catalog.Service) { s.ID = "../x" }, "no good id"},
		{"an id that is two lines", func(s *catalog.Service) { s.ID = "x\nExecStartPre=y" }, "no good id"},
		{"nobody to run as", func(s *catalog.Service) { s.RunAs = "" }, "run_as"},
		{"root", func(s *catalog.Service) { s.RunAs = "root" }, "neither root"},
		{"one of Durward's users", func(s *catalog.Service) { s.RunAs = "durward-vault" }, "neither root"},
		{"an argument that is shown turned round", func(s *catalog.Service) { s.Argv = append(s.Argv, "a\u202eb") }, "would not see"},
		{"a variable with a character without width", func(s *catalog.Service) { s.Environment = map[string]string{"A": "b\u200bc"} }, "control character"},
		{"a user that is two lines", func(s *catalog.Service) { s.RunAs = "models\nUser=root" }, "neither root"},
		{"a relative program", func(s *catalog.Service) { s.Argv = []string{"llama-server"} }, "cannot hold"},
		{"a program with a quote", func(s *catalog.Service) { s.Argv = []string{`/opt/"x`} }, "cannot hold"},
		{"a program with a newline", func(s *catalog.Service) { s.Argv = []string{"/opt/x\n[Install]"} }, "cannot hold"},
		{"an argument that is not UTF-8", func(s *catalog.Service) { s.Argv = append(s.Argv, "\xff") }, "UTF-8"},
		{"an argument with a zero byte", func(s *catalog.Service) { s.Argv = append(s.Argv, "a\x00b") }, "zero byte"},
		{"a variable's name", func(s *catalog.Service) { s.Environment = map[string]string{"A=B\nC": "d"} }, "no good name"},
		{"a variable's value", func(s *catalog.Service) { s.Environment = map[string]string{"A": "\x1b[0m"} }, "control character"},
		{"a working folder with a newline", func(s *catalog.Service) { s.WorkingDir = "/srv\nUser=root" }, "cannot hold"},
		{"a working folder that continues", func(s *catalog.Service) { s.WorkingDir = `/srv\` }, "cannot hold"},
		{"a working folder that is relative", func(s *catalog.Service) { s.WorkingDir = "srv" }, "cannot hold"},
		{"more than systemd reads", func(s *catalog.Service) { s.Argv = append(s.Argv, strings.Repeat("x", maxUnit)) }, "longer"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := entry(good...)
			c.change(s)
			if out, err := Render(s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Render = %v, want %q\n%s", err, c.want, out)
			}
		})
	}
}

// gpumod's unit had vLLM listen on 0.0.0.0, with its development endpoints and no authentication.
func TestGpumodD12RenderedUnitIsReachedFromThisHostAlone(t *testing.T) {
	beyond := [][]string{
		{"/opt/vllm", "serve", "m", "--host", "0.0.0.0"},
		{"/opt/vllm", "serve", "m", "--host=0.0.0.0"},
		{"/opt/vllm", "serve", "m", "--host", "127.0.0.1", "--host", "0.0.0.0"},
		{"/opt/vllm", "serve", "m", "--host", "::"},
		{"/opt/vllm", "serve", "m", "--host", "[::]"},
		{"/opt/vllm", "serve", "m", "--host", "::ffff:0.0.0.0"},
		{"/opt/vllm", "serve", "m", "--host", "192.168.1.5"},
		{"/opt/vllm", "serve", "m", "--host", "gpu-host"},
		{"/opt/vllm", "serve", "m", "--host", "localhost.example.org"},
		{"/opt/vllm", "serve", "m", "--host", ""},
		{"/opt/vllm", "serve", "m", "--host", "*"},
		{"/opt/vllm", "serve", "m"},
		{"/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"},
		{"/usr/bin/python3.12", "/opt/venv/bin/vllm", "serve", "m"},
		{"/usr/bin/llama-server", "--host", "0.0.0.0"},
		{"/usr/bin/llama-server", "-host=0.0.0.0"},
		{"/usr/bin/x", "--listen", ":8080"},
		{"/usr/bin/x", "--listen", "0.0.0.0:8080"},
		{"/usr/bin/x", "--some-address=0.0.0.0:8080"},
		{"/usr/bin/x", "-b", "10.0.0.1:80"},
		{"/usr/bin/x", "0.0.0.0"},
	}
	for _, argv := range beyond {
		if out, err := Render(entry(argv...)); !errors.Is(err, catalog.ErrBeyond) && !errors.Is(err, catalog.ErrOpen) {
			t.Errorf("%q: %v\n%s", argv, err, out)
		}
	}
	for _, env := range []map[string]string{{"OLLAMA_HOST": "0.0.0.0"}, {"VLLM_HOST": "10.1.1.1"}, {"ANY": "[::]:80"}, {"OLLAMA_HOST": "http://0.0.0.0:11434"}} {
		s := entry("/usr/bin/ollama", "serve")
		s.Environment = env
		if _, err := Render(s); !errors.Is(err, catalog.ErrBeyond) {
			t.Errorf("environment %v: %v", env, err)
		}
	}
	for _, argv := range [][]string{
		{"/opt/vllm", "serve", "m", "--host", "127.0.0.1"},
		{"/opt/vllm", "serve", "m", "--host=::1"},
		{"/opt/vllm", "bench", "m"},
		{"/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--host", "localhost"},
		{"/usr/bin/llama-server", "--port", "8001"},
		{"/usr/bin/x", "--listen=127.0.0.1:8080"},
		{"/usr/bin/x", "--listen", "unix:/run/x.sock"},
	} {
		out, err := Render(entry(argv...))
		if err != nil {
			t.Errorf("%q: %v", argv, err)
			continue
		}
		u := parse(t, string(out))
		if diff := cmp.Diff([]string{"any"}, u["Service.IPAddressDeny"]); diff != "" {
			t.Errorf("%q: IPAddressDeny (-want +got):\n%s", argv, diff)
		}
		if diff := cmp.Diff([]string{"localhost"}, u["Service.IPAddressAllow"]); diff != "" {
			t.Errorf("%q: IPAddressAllow (-want +got):\n%s", argv, diff)
		}
	}
}

func TestRender(t *testing.T) {
	full := entry("/opt/engines/llama-server", "--model", "/srv/models/x y.gguf", "--host", "127.0.0.1", "--port", "8001", "--alias", `a"b\c$HOME%h;`)
	full.Environment = map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-1", "NOTE": "100% $x \"q\"\nline"}
	full.GPUs = []uint32{0}
	full.WorkingDir = "/srv/work 100%"
	full.Limits = catalog.Limits{MemoryMiB: 4096, CPUPercent: 250, PIDs: 512}
	small := entry("/home/ann/bin/batch")
	small.Port, small.Network = 0, catalog.NetworkNone
	for name, s := range map[string]*catalog.Service{"full": full, "small": small} {
		t.Run(name, func(t *testing.T) {
			got, err := Render(s)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, "testdata/"+name+".service", got)
		})
	}
}

func compare(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := golden.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		input.Outside(t)
		want, err = os.ReadFile(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// Whatever an entry holds, systemd reads back what it says, and not a line more.
func FuzzRender(f *testing.F) {
	for _, seed := range []string{
		"plain", "two words", `"quoted"`, `back\slash`, `trailing\`, "100%", "%n %%", "$HOME ${HOME} $$", "new\nline", "a\r\nb", "tab\t", ";", `\;`, "#", "'",
		"\n[Install]\nWantedBy=multi-user.target", "\x01\x7f", "é\u2028ü", "", " ", "-", "@", ":", "+", "!", "\\x41", "\\n",
	} {
		f.Add(seed, seed, seed)
	}
	bare := entry("/bin/x", "a")
	bare.Environment = map[string]string{"V": "a"}
	plainUnit, err := Render(bare)
	if err != nil {
		f.Fatal(err)
	}
	lines := strings.Count(string(plainUnit), "\n")
	f.Fuzz(func(t *testing.T, argument, value, folder string) {
		s := entry("/bin/x", argument)
		s.Environment = map[string]string{"V": value}
		s.WorkingDir = "/" + folder
		out, err := Render(s)
		if err != nil {
			return
		}
		if n := strings.Count(string(out), "\n"); n != lines || !utf8.Valid(out) {
			t.Fatalf("%d lines instead of %d:\n%s", n, lines, out)
		}
		u := parse(t, string(out))
		if diff := cmp.Diff([]string{"/bin/x", argument}, execute(t, u["Service.ExecStart"])); diff != "" {
			t.Errorf("argv (-want +got):\n%s\n%s", diff, out)
		}
		found := false
		for _, line := range u["Service.Environment"] {
			for _, word := range words(t, line) {
				found = found || specifiers(t, word) == "V="+value
			}
		}
		if !found {
			t.Errorf("the variable's value %q is not there:\n%s", value, out)
		}
		if got := specifiers(t, strings.Join(u["Service.WorkingDirectory"], "|")); got != s.WorkingDir {
			t.Errorf("the working folder is %q, not %q", got, s.WorkingDir)
		}
	})
}

// parse reads a unit as systemd does: comments, sections, continuation by a backslash at a line's end (systemd.syntax(7)).
func parse(t *testing.T, text string) map[string][]string {
	t.Helper()
	out, section := map[string][]string{}, ""
	joined := ""
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimLeft(line, " \t")
		if joined == "" && (line == "" || line[0] == '#' || line[0] == ';') {
			continue
		}
		if strings.HasSuffix(line, `\`) {
			joined += strings.TrimSuffix(line, `\`) + " "
			continue
		}
		line, joined = strings.TrimRight(joined+line, " \t\r"), ""
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("a line that is no assignment: %q", line)
		}
		out[section+"."+key] = append(out[section+"."+key], strings.TrimLeft(value, " \t"))
	}
	return out
}

// execute reads ExecStart= as systemd's config_parse_exec does.
func execute(t *testing.T, values []string) []string {
	t.Helper()
	if len(values) != 1 {
		t.Fatalf("%d commands: %q", len(values), values)
	}
	list := words(t, values[0])
	program, ok := strings.CutPrefix(list[0], ":")
	if !ok {
		t.Fatalf("variables are replaced in %q", values[0])
	}
	list[0] = program
	for i := range list {
		list[i] = specifiers(t, list[i])
	}
	return list
}

// words splits a value as systemd's extract_first_word does with EXTRACT_UNQUOTE and EXTRACT_CUNESCAPE; a word that is a bare
// semicolon would begin another command.
func words(t *testing.T, value string) []string {
	t.Helper()
	var out []string
	var word []byte
	var quoted byte
	begun := false
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case c == '\\':
			b, n := unescape(t, value[i+1:])
			word, begun = append(word, b...), true
			i += n
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted == 0 && (c == '"' || c == '\''):
			quoted, begun = c, true
		case quoted == 0 && strings.IndexByte(" \t\n\r", c) >= 0:
			if begun {
				out, word, begun = append(out, string(word)), nil, false
			}
		case quoted == 0 && !begun && c == ';':
			t.Fatalf("a bare semicolon in %q", value)
		default:
			word, begun = append(word, c), true
		}
	}
	if quoted != 0 {
		t.Fatalf("an open quote in %q", value)
	}
	if begun {
		out = append(out, string(word))
	}
	return out
}

// unescape is systemd's cunescape_one.
func unescape(t *testing.T, s string) (string, int) {
	t.Helper()
	if s == "" {
		t.Fatal("a backslash at the end")
	}
	if i := strings.IndexByte(`abfnrtv\"'s`, s[0]); i >= 0 {
		return "\a\b\f\n\r\t\v\\\"' "[i : i+1], 1
	}
	if s[0] != 'x' || len(s) < 3 {
		t.Fatalf(`an escape that is not known: \%.3s`, s)
	}
	n, err := strconv.ParseUint(s[1:3], 16, 8)
	if err != nil || n == 0 {
		t.Fatalf(`an escape that is not known: \%.3s`, s)
	}
	return string([]byte{byte(n)}), 3
}

// specifiers replaces %%, and finds no other.
func specifiers(t *testing.T, s string) string {
	t.Helper()
	rest := strings.ReplaceAll(s, "%%", "")
	if strings.Contains(rest, "%") {
		t.Fatalf("a specifier in %q", s)
	}
	return strings.ReplaceAll(s, "%%", "%")
}

func TestPolkit(t *testing.T) {
	c := func(units ...string) *catalog.Catalog {
		out := &catalog.Catalog{Services: []*catalog.Service{entry("/bin/x")}}
		for _, u := range units {
			out.Services = append(out.Services, &catalog.Service{ID: "s", Driver: catalog.DriverSystemd, Unit: u})
		}
		return out
	}
	if _, err := Polkit(c(), "durward-executor"); !errors.Is(err, ErrNoUnits) {
		t.Errorf("a catalogue without units: %v", err)
	}
	for _, unit := range []string{"x.target", "-x.service", `x"].service`, "x@.service", "a/b.service", "", "durward-vault.service", "durward-executor.service", "dbus.service",
		"systemd-networkd.service", "docker.service", "containerd.service", "user@0.service", "sshd@x.service", "firewalld.service", "durward-gateway.service"} {
		if out, err := Polkit(c(unit), "durward-executor"); err == nil {
			t.Errorf("unit %q: %s", unit, out)
		}
	}
	for _, user := range []string{"", "root", `a"b`, "a\nb"} {
		if out, err := Polkit(c("x.service"), user); err == nil {
			t.Errorf("user %q: %s", user, out)
		}
	}
	got, err := Polkit(c("durward-service-demo-embed.service", "llm@coder.service", "durward-service-demo-chat.service", "llm@coder.service"), "durward-executor")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "../../../../deploy/systemd/polkit/60-durward.rules", got)
}
