package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/godbus/dbus/v5"
)

// desktop shows a notification in the operator's session, by the Desktop Notifications Specification: one call of Notify.
type desktop struct{}

func (desktop) send(ctx context.Context, m message) error {
	address, err := sessionBus(os.Getenv)
	if err != nil {
		return err
	}
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return errors.New("there is no session bus: is anybody logged in?")
	}
	defer func() { _ = conn.Close() }()
	urgency := byte(1)
	if m.destructive() {
		urgency = 2
	}
	call := conn.Object("org.freedesktop.Notifications", "/org/freedesktop/Notifications").CallWithContext(ctx,
		"org.freedesktop.Notifications.Notify", 0, "Durward", uint32(0), "dialog-password", m.title(), m.body(), []string{},
		map[string]dbus.Variant{"urgency": dbus.MakeVariant(urgency)}, int32(-1))
	if call.Err != nil {
		return errors.New("nothing on the session bus shows notifications")
	}
	return nil
}

// sessionBus is the address of the operator's session bus: a Unix socket, never another transport.
func sessionBus(getenv func(string) string) (string, error) {
	address := getenv("DBUS_SESSION_BUS_ADDRESS")
	if address == "" {
		address = "unix:path=" + filepath.Join(cmp.Or(getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("/run/user/%d", os.Getuid())), "bus")
	}
	if !strings.HasPrefix(address, "unix:") || strings.Contains(address, ";") {
		return "", errors.New("DBUS_SESSION_BUS_ADDRESS names no Unix socket")
	}
	return address, nil
}
