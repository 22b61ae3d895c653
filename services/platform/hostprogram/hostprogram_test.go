package hostprogram

import (
	"errors"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	sh, err := Find("sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOSTPROGRAM_SECRET", "x")
	out, err := Run(t.Context(), sh, "-c", "pwd; env")
	if text := string(out); err != nil || !strings.HasPrefix(text, "/\n") || strings.Contains(text, "HOSTPROGRAM_SECRET") || !strings.Contains(text, "LC_ALL=C") {
		t.Errorf("%v: %s", err, text)
	}
	if _, err := Run(t.Context(), sh, "-c", "head -c 5000000 /dev/zero"); !errors.Is(err, ErrOutput) {
		t.Errorf("too much was taken: %v", err)
	}
	for _, args := range [][]string{{"sh", "-c", "true"}, {sh, "-c", "exit 3"}, {"/no/such/program"}} {
		if _, err := Run(t.Context(), args[0], args[1:]...); err == nil {
			t.Errorf("%q was run", args)
		}
	}
	if _, err := Find("no-such-program"); err == nil {
		t.Error("a program was found that is not there")
	}
}
