package admin

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestDocuments(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "durward", Short: "The human's side"}
	sub := &cobra.Command{Use: "deny NUMBER", Short: "Refuse it", Long: ".hidden is a file, \\n is no line\n'so' is -x", Run: run}
	sub.AddCommand(&cobra.Command{Use: "all", Short: "Refuse all", Run: run})
	root.AddCommand(sub, &cobra.Command{Use: "secret", Hidden: true, Run: run}, &cobra.Command{Use: "exit-codes", Short: "Codes", Long: "0  done"})
	root.InitDefaultHelpCmd()
	files, err := documents(root, "v1.2.3-devel.4+abc")
	must(t, err)
	for _, want := range []string{
		bashCompletions + "/durward", zshCompletions + "/_durward", fishCompletions + "/durward.fish",
		manualPages + "/durward.1", manualPages + "/durward-deny.1", manualPages + "/durward-deny-all.1", manualPages + "/durward-exit-codes.1",
	} {
		if len(files[want]) == 0 {
			t.Errorf("%s is missing", want)
		}
		delete(files, want)
	}
	for path := range files {
		t.Errorf("%s is too many", path)
	}
	got := string(page(sub, "durward-deny", "v1.2.3-devel.4+abc"))
	for _, want := range []string{
		`.TH "DURWARD\-DENY" 1 "" "Durward v1.2.3\-devel.4+abc" "Durward"`, `durward\-deny \- Refuse it`, "\n\\&.hidden is a file, \\en is no line\n\\&'so' is \\-x\n",
		"durward deny NUMBER", ".SH SEE ALSO\ndurward(1),\ndurward\\-deny\\-all(1)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	for line := range strings.Lines(got) {
		if request, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(line, ".") && !strings.Contains(".TH .SH .nf .fi", request) {
			t.Errorf("a line of the help became the request %s", line)
		}
	}
}
