package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// Nothing personal and no credential leaves, whichever text it stands in; what helps stays.
func TestBundleIsClean(t *testing.T) {
	c, err := NewCleaner([]Name{{"ada", "OPERATOR"}, {"ada.lovelace", "USER"}, {"gpubox.example", "HOST"}, {"", "NOTHING"}, {"x", "NOTHING"}})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBundle(c)
	log := `{"level":"ERROR","msg":"cannot reach audit","caller":"spiffe://durward.local/operator/ada","path":"/home/ada.lovelace/ada"}
mail of Maria Gonzalez <maria@example.org>, ada ada ada, adamant, on gpubox.example
key sk-ant-api03-` + strings.Repeat("Zq7", 31) + `AA and password=hunter2hunter2
` + "\x1b[31mred\x1b[0m 4111 1111 1111 1111\n"
	if err := errors.Join(b.Add(t.Context(), "logs/vault.log", log, nil), b.Add(t.Context(), "metrics/audit", "", errors.New("ada's is down"))); err != nil {
		t.Fatal(err)
	}
	if len(b.Texts) != 2 || b.Texts[0].Removed < 8 || b.Texts[0].Bytes == 0 {
		t.Errorf("the list says %+v", b.Texts)
	}
	var out bytes.Buffer
	if err := b.Write(&out, time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	zipped, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for archive := tar.NewReader(zipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(h.Name + "\n")
		if _, err := io.Copy(&text, archive); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{"/ada\"", " ada ", "lovelace", "gpubox", "Maria", "Gonzalez", "maria@", "sk-ant", "Zq7", "hunter2", "4111", "\x1b"} {
		if strings.Contains(text.String(), gone) {
			t.Errorf("%q is in it:\n%s", gone, text.String())
		}
	}
	for _, stays := range []string{"durward-support/logs/vault.log", "cannot reach audit", "durward.local/operator/OPERATOR", "/home/USER/OPERATOR", "adamant", "it could not be had: OPERATOR's is down"} {
		if !strings.Contains(text.String(), stays) {
			t.Errorf("%q is not in it:\n%s", stays, text.String())
		}
	}
}

// What is taken out counts once, and a name is found as logs and hosts write it.
func TestCleaned(t *testing.T) {
	c, err := NewCleaner([]Name{{"ada", "USER"}, {"gpubox", "HOST"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		text, want string
		n          int
	}{
		{"token=abc123def456ghi789", "token=[credential]", 1},
		{"http://user:hunter2hunter2@proxy.example:3128", "http://user:[credential]@proxy.example:3128", 1},
		{`{"error":"users:\nada\tada\nadamant C:\ada"}`, `{"error":"users:\nUSER\tUSER\nadamant C:\USER"}`, 3},
		{"GPUBOX Gpubox gpubox.local Ada", "HOST HOST HOST.local USER", 4},
	} {
		if got, n, err := c.Clean(t.Context(), x.text); err != nil || got != x.want || n != x.n {
			t.Errorf("%q becomes %q with %d taken out, want %q with %d: %v", x.text, got, n, x.want, x.n, err)
		}
	}
}

// Of a long text the end stays, from the beginning of a line.
func TestTheEndOfALongTextStays(t *testing.T) {
	c, err := NewCleaner(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, n, err := c.Clean(t.Context(), strings.Repeat("a line\n", maxText/7+100)+"the last\n")
	if err != nil || n != 0 || len(got) > maxText || !strings.HasPrefix(got, "a line\n") || !strings.Contains(got, "the last") {
		t.Errorf("%d bytes, %d removed, %v", len(got), n, err)
	}
}
