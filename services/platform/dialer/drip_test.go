package dialer_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
)

// TestDrips: a server that sends one byte after the other, each well within every timeout, is given up when the phase's time is over, or
// the whole's where the phase has none; meanwhile the same dialer fetches from others. A timeout that each byte began anew would end
// none of it, and neither would this test.
func TestDrips(t *testing.T) {
	t.Parallel()
	const soon, never = time.Second, time.Hour
	// drip sends start at once, and goes on with a byte at a time until the other side is gone.
	drip := func(dripped chan<- struct{}, start string) func(net.Conn) {
		return func(conn net.Conn) {
			if _, err := bufio.NewReader(conn).ReadByte(); err != nil {
				return
			}
			_, err := io.WriteString(conn, start)
			for n := 0; err == nil; n++ {
				if n == 3 {
					dripped <- struct{}{}
				}
				time.Sleep(5 * time.Millisecond) // what drips is what is tested
				_, err = conn.Write([]byte("a"))
			}
		}
	}
	for name, c := range map[string]struct {
		scheme, start string
		limits        dialer.Limits
	}{
		"TLS, by its own timeout":         {"https", "\x16\x03\x03\x40\x00", dialer.Limits{TLS: soon, Header: never, Whole: never}},
		"the header, by its own timeout":  {"http", "HTTP/1.1 200 OK\r\nX: ", dialer.Limits{Header: soon, Whole: never}},
		"the first line":                  {"http", "", dialer.Limits{Header: soon, Whole: never}},
		"TLS, by the whole's timeout":     {"https", "\x16\x03\x03\x40\x00", dialer.Limits{TLS: never, Header: never, Whole: soon}},
		"the header, by the whole's":      {"http", "HTTP/1.1 200 OK\r\nX: ", dialer.Limits{Header: never, Whole: soon}},
		"the body":                        {"http", "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", dialer.Limits{Whole: soon}},
		"a body without an announced end": {"http", "HTTP/1.1 200 OK\r\n\r\n", dialer.Limits{Whole: soon}},
		"a chunk":                         {"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n", dialer.Limits{Whole: soon}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dripped := make(chan struct{}, 1)
			slow := raw(t, drip(dripped, c.start))
			good := serve(t, false, say("good"))
			all := func(context.Context, destination.Destination) error { return nil }
			d := local(t, dialer.Config{Allow: all, Limits: c.limits, Local: []netip.AddrPort{slow}}, good)
			var call sync.WaitGroup
			call.Go(func() {
				answer, err := get(d, c.scheme+"://"+slow.String()+"/")
				if !ruled(err, destination.RuleTime) || !strings.Contains(err.Error(), "within the time") {
					t.Errorf("%+v, %v", answer, err)
				}
			})
			<-dripped
			if answer, err := get(d, good.URL); err != nil || string(answer.Body) != "good" {
				t.Errorf("another's, meanwhile: %+v, %v", answer, err)
			}
			call.Wait()
		})
	}
}
