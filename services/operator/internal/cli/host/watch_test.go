package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/cli/picture"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/pty"
	"durward.internal/services/platform/contract"
)

// TestScreen: the picture on a terminal holds everything, in lines without hostile characters.
func TestScreen(t *testing.T) {
	core, _, _ := clitest.Printing(false)
	core.HomeDir = "h"
	a := &app{core}
	p := picture.New()
	host := clitest.Host()
	tool, _ := contract.Lookup("switch_mode")
	op := &vaultv1.Operation{
		OperationId: "x", State: vaultv1.OperationState_OPERATION_STATE_RUNNING, Tool: tool.Ref(),
		Arguments: []byte(`{"mode_id":"coding"}`), Principal: "claude",
	}
	for _, c := range []picture.Change{
		picture.HostChange(host), picture.HostChange(host),
		picture.ModesChange(&executorv1.ListModesResponse{Current: "coding"}),
		picture.OperationsChange(a.App, []*vaultv1.Operation{op, {OperationId: "y", State: vaultv1.OperationState_OPERATION_STATE_PENDING}}),
		picture.StepChange(a.App, "x", &executorv1.WatchProgressResponse{Step: 1, Phase: "start", ServiceId: "coder", ExpectedMs: 9000}),
		picture.StepChange(a.App, "x", &executorv1.WatchProgressResponse{Step: 2, Phase: "ready", ServiceId: "coder", Ended: true, Cause: "the GPU's memory ran out"}),
		picture.ServiceChange(&executorv1.WatchServicesResponse{ServiceId: "coder\x1b", State: executorv1.ServiceState_SERVICE_STATE_SLEEPING}),
		picture.ProblemChange("vault", "the vault cannot be reached"),
	} {
		c(p)
	}
	got := strings.Join(a.screenLines(p, 80, everything), "\n")
	for _, want := range []string{
		"mode coding (drifted)", "vault: the vault cannot be reached", "1 waiting for you: durward --home h approvals", "GPU 0", "█", "switch_mode mode_id=coding  for claude",
		"● 1 starting", "0.0 s of about 9.0 s", "✗ 2 loading", "the GPU's memory ran out", "coder ", "sleeping",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") {
		t.Errorf("escape codes in %q", got)
	}
	// A low terminal leaves out what comes last.
	if strings.Index(got, "● 1 starting") > strings.Index(got, "GPU 0") {
		t.Errorf("the steps stand behind the GPUs:\n%s", got)
	}
	// It ends, is shown for a while, and goes.
	picture.OperationsChange(a.App, nil)(p)
	if p.Forget(clitest.Now.Add(time.Second)); len(p.Ops) != 1 || len(p.Waiting) != 0 {
		t.Errorf("%d operations are shown, %d wait", len(p.Ops), len(p.Waiting))
	}
	if p.Forget(clitest.Now.Add(time.Minute)); len(p.Ops) != 0 {
		t.Error("an operation that ended long ago is still shown")
	}
}

// TestScreenShowsDanger: the red line stands on the screen as long as a session is in dangerous mode, and is told once where there
// is no screen.
func TestScreenShowsDanger(t *testing.T) {
	core, _, _ := clitest.Printing(false)
	a := &app{core}
	p := picture.New()
	on := &vaultv1.ListStandingResponse{Standing: []*vaultv1.Standing{
		{Kind: "scope", Session: "s-2", Principal: "cursor", ExpiresAt: timestamppb.New(clitest.Now)},
		{Kind: "dangerous", Session: "s-1", Principal: "claude\x1b[2J", ExpiresAt: timestamppb.New(clitest.Now)},
	}}
	for _, c := range []struct {
		list   *vaultv1.ListStandingResponse
		shown  bool
		told   int
		agents string
	}{
		{&vaultv1.ListStandingResponse{Standing: on.Standing[:1]}, false, 0, ""},
		{on, true, 1, "[s-1]"},
		{on, true, 0, ""},
		{&vaultv1.ListStandingResponse{}, false, 1, "[]"},
	} {
		said := picture.DangerChange(c.list, "durward --home h")(p)
		got := strings.Join(a.screenLines(p, 80, everything), "\n")
		if shown := strings.Contains(got, "DANGEROUS MODE: claude"); shown != c.shown || strings.Contains(got, "\x1b[2J") || strings.Contains(got, "cursor") {
			t.Errorf("shown %v, want %v:\n%s", shown, c.shown, got)
		}
		if c.shown && !strings.Contains(p.Danger, "End it: durward --home h dangerous disable") {
			t.Errorf("it ends what another installation has: %s", p.Danger)
		}
		if len(said) != c.told {
			t.Errorf("told %v", said)
		}
		for _, n := range said {
			if value, ok := n.Value.(picture.DangerNews); !ok || fmt.Sprint(value.Sessions) != c.agents {
				t.Errorf("told %+v, want %s", n.Value, c.agents)
			}
		}
	}
}

// TestCtrlZGivesTheTerminalBack: a shell that controls jobs gets its screen and cursor back while the screen is stopped, and the screen comes
// again when it goes on. The test is the program, too.
func TestCtrlZGivesTheTerminalBack(t *testing.T) {
	const asProgram, other, normal, hidden, shown = "DURWARD_TEST_WATCHES", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h"
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		a := &app{&cli.App{Out: output.New(os.Stdout, os.Stderr, os.Getenv), Now: time.Now}}
		if err := a.watchScreen(ctx, picture.New(), nil, everything); err != nil {
			t.Error(err)
		}
		return
	}
	master, slave, err := pty.Open(80, 24)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	shell := exec.CommandContext(t.Context(), "sh", "-m", "-c", `"$0" -test.run='^TestCtrlZGivesTheTerminalBack$'; echo STOPPED; fg; echo OVER`, os.Args[0])
	shell.Env = append(os.Environ(), asProgram+"=1", "TERM=xterm")
	shell.Stdin, shell.Stdout, shell.Stderr, shell.SysProcAttr = slave, slave, slave, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close() // the shell has its own
	// until is what is drawn up to a text.
	var rest string
	until := func(text string) string {
		t.Helper()
		for b := make([]byte, 4096); ; {
			if before, after, there := strings.Cut(rest, text); there {
				rest = after
				return before
			}
			n, err := master.Read(b)
			if rest += string(b[:n]); err != nil {
				t.Fatalf("%q never came: %v\n%q", text, err, rest)
			}
		}
	}
	press := func(key string) {
		t.Helper()
		if _, err := master.WriteString(key); err != nil {
			t.Fatal(err)
		}
	}
	until(other + hidden)
	press("\x1a")
	if drawn := until("STOPPED"); !strings.Contains(drawn, shown+normal) {
		t.Fatalf("stopped with the terminal as it was: %q", drawn)
	}
	until(other + hidden)
	press("\x03")
	if drawn := until("OVER"); !strings.Contains(drawn, shown+normal) {
		t.Errorf("ended with the terminal as it was: %q", drawn)
	}
	_ = shell.Wait() // "fg" ends as the program did
}
