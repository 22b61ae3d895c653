package notify

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/platformtest/installed"
)

// notifications is org.freedesktop.Notifications as a desktop has it.
type notifications struct{ got chan []any }

// Notify is the specification's method.
func (n notifications) Notify(app string, replaces uint32, icon, summary, body string, actions []string, hints map[string]dbus.Variant, timeout int32) (uint32, *dbus.Error) {
	n.got <- []any{app, summary, body, hints["urgency"].Value(), len(actions), replaces, timeout, icon}
	return 1, nil
}

// TestDesktop: a desktop's notification service gets one call, over a real session bus.
func TestDesktop(t *testing.T) {
	daemon := installed.Program(t, "dbus-daemon")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	config := write(t, "bus.conf", `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=`+filepath.Join(t.TempDir(), "bus")+`</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`)
	cmd := exec.CommandContext(ctx, daemon, "--config-file="+config, "--nofork", "--print-address=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }() // it was killed
	address, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", strings.TrimSpace(address))
	if err := (desktop{}).send(t.Context(), sample(optionsv1.Tier_TIER_WRITE)); err == nil || !strings.Contains(err.Error(), "shows notifications") {
		t.Errorf("without a desktop: %v", err)
	}
	shown := notifications{make(chan []any, 2)}
	conn, err := dbus.Connect(strings.TrimSpace(address))
	must(t, err)
	defer func() { _ = conn.Close() }()
	must(t, conn.Export(shown, "/org/freedesktop/Notifications", "org.freedesktop.Notifications"))
	if reply, err := conn.RequestName("org.freedesktop.Notifications", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(reply, err)
	}
	for tier, urgency := range map[optionsv1.Tier]byte{optionsv1.Tier_TIER_WRITE: 1, optionsv1.Tier_TIER_DESTRUCTIVE: 2} {
		must(t, (desktop{}).send(t.Context(), sample(tier)))
		body := strings.Replace(line, "WRITE", strings.TrimPrefix(tier.String(), "TIER_"), 1)
		if got, want := fmt.Sprint(<-shown.got), fmt.Sprint([]any{"Durward", "Durward: a request waits for you", body, urgency, 0, 0, -1, "dialog-password"}); got != want {
			t.Errorf("shown: %s, want %s", got, want)
		}
	}
}

// TestDesktopAway: where nobody is logged in, or the environment leads elsewhere, nothing is dialled but a Unix socket.
func TestDesktopAway(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	for address, want := range map[string]string{
		"tcp:host=127.0.0.1,port=" + port:                                "no Unix socket",
		"unix:path=/nonexistent/bus;tcp:host=127.0.0.1,port=" + port:     "no Unix socket",
		"unixexec:path=/bin/true":                                        "no Unix socket",
		"unix:path=" + filepath.Join(t.TempDir(), "bus"):                 "no session bus",
		"unix:path=" + filepath.Join(t.TempDir(), "bus") + ",guid=12345": "no session bus",
	} {
		t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
		if err := (desktop{}).send(t.Context(), sample(optionsv1.Tier_TIER_WRITE)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if got, err := sessionBus(func(name string) string { return map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}[name] }); err != nil || got != "unix:path=/run/user/7/bus" {
		t.Errorf("without an address: %s, %v", got, err)
	}
	own, err := net.Dial("tcp4", l.Addr().String())
	must(t, err)
	defer own.Close()
	first, err := l.Accept()
	must(t, err)
	defer first.Close()
	if first.RemoteAddr().String() != own.LocalAddr().String() {
		t.Error("a TCP service is dialled")
	}
}
