package telemetry

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// notifySocket names where systemd hears of a unit with Type=notify; see sd_notify(3).
const notifySocket = "NOTIFY_SOCKET"

// tellSystemd says that the process is up, where systemd waits for that. Programs that the process starts are not to say it again.
func tellSystemd() (err error) {
	path := os.Getenv(notifySocket)
	if path == "" {
		return nil
	}
	defer func() {
		if err = errors.Join(err, os.Unsetenv(notifySocket)); err != nil {
			err = fmt.Errorf("tell systemd that the process is up: %w", err)
		}
	}()
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("READY=1"))
	return errors.Join(err, conn.Close())
}
