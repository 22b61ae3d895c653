package root

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/privacy"
	"durward.internal/services/platform/platformtest/testfile"
)

func TestPrivacyDetect(t *testing.T) {
	t.Chdir(t.TempDir())
	run := func(in string, args ...string) (code int, out, errs string) {
		t.Helper()
		var o, e bytes.Buffer
		code = Main(t.Context(), append([]string{"privacy", "detect"}, args...), cli.Streams{In: strings.NewReader(in), Out: &o, Err: &e, Getenv: bare})
		return code, o.String(), e.String()
	}
	for name, c := range map[string]struct {
		in   string
		args []string
		code int
		errs string
	}{
		"no file":        {"", nil, cli.ExitUsage, "privacy detect"},
		"two files":      {"", []string{"a", "b"}, cli.ExitUsage, "privacy detect"},
		"a missing file": {"", []string{"none.txt"}, cli.ExitFailed, "Name a file that is there"},
		"a folder":       {"", []string{"."}, cli.ExitFailed, "is a directory"},
		"no text":        {"\xff\xfe", []string{"-"}, cli.ExitFailed, "no text in UTF-8"},
	} {
		if code, out, errs := run(c.in, c.args...); code != c.code || !strings.Contains(errs, c.errs) || out != "" {
			t.Errorf("%s: exit code %d, %q, %q", name, code, out, errs)
		}
	}
	const text = "all is well\nécrivez à maria@example.org, s'il vous plaît\n\x1b[31m+1 (555) 234-5678\n"
	testfile.Write(t, "mail.txt", text)
	code, out, errs := run("", "mail.txt")
	if code != cli.ExitOK || errs != "" || !strings.Contains(out, "2:11") || !strings.Contains(out, "EMAIL") || !strings.Contains(out, "maria@example.org") ||
		!strings.Contains(out, "PHONE") || !strings.Contains(out, "2 values in") || strings.Contains(out, "\x1b") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	for _, args := range [][]string{{"mail.txt", "--json"}, {"-", "-o", "json"}} {
		code, out, errs = run(text, args...)
		var got privacy.ResultJSON
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.ExitOK || errs != "" {
			t.Fatalf("exit code %d, %v, %q, %q", code, err, out, errs)
		}
		if len(got.Found) != 2 || got.Bytes != len(text) || got.Counts["EMAIL"] != 1 || got.Counts["PHONE"] != 1 {
			t.Fatalf("%+v", got)
		}
		if f := got.Found[0]; text[f.From:f.To] != "maria@example.org" || f.Value != "maria@example.org" || f.Line != 2 || f.Column != 11 || f.Why == "" || f.Confidence < 1 {
			t.Errorf("%+v", f)
		}
	}
	if code, out, _ := run("all is well\n", "-"); code != cli.ExitOK || out != "nothing is found in 12 bytes\n" {
		t.Errorf("exit code %d, %q", code, out)
	}
	if code, out, _ := run("all is well\n", "-", "--json"); code != cli.ExitOK || !strings.Contains(out, `"found": []`) {
		t.Errorf("exit code %d, %q", code, out)
	}
}
