package drill

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/procfs"
)

// crowdLines are attacks by numbers: their worlds have nothing else to do.
func crowdLines() []Line {
	return []Line{
		{"edge-slow-clients", map[string]string{harness.Gateway: "slow"}, slowClients},
		{"edge-refusal-flood", map[string]string{harness.Gateway: "flood"}, refusalFlood},
	}
}

// Slow clients: how many there are, how long the gateway may take to be rid of one, and how many connections a client may keep.
const (
	slowCount            = 1000
	slowTime             = 25 * time.Second
	connectionsPerClient = 64
)

// slowClients opens a thousand connections that send their headers or their bodies a byte at a time, or never read what they
// are answered, beside a client that was there before and one that comes later. Its effects are calls of those that failed or
// took long, and connections that the gateway still keeps after its own limits.
func slowClients(w *world) (trials, effects int) {
	normal, late, holder := w.agent(), w.agent(), w.agent()
	connection := &http.Client{Transport: &http.Transport{}, Timeout: callTime}
	defer connection.CloseIdleConnections()
	call := func(client *http.Client, a agent) error {
		request, err := harness.StatelessCall(a.token, "list_services", "{}").HTTP(w.t.Context(), w.h.MCPURL())
		if err != nil {
			return err
		}
		began := time.Now()
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		raw, err := io.ReadAll(response.Body)
		if took := time.Since(began); err != nil || took > 5*time.Second || !bytes.Contains(raw, []byte(`"status":"ok"`)) {
			return fmt.Errorf("after %s: %w, %d %s", took.Round(time.Millisecond), err, response.StatusCode, raw)
		}
		return nil
	}
	w.must(call(connection, normal))
	ctx, cancel := context.WithTimeout(w.t.Context(), slowTime)
	defer cancel()
	var kept [len(dawdlers)]atomic.Int64
	var crowd sync.WaitGroup
	for i := range slowCount {
		trials++
		crowd.Go(func() {
			if dawdle(ctx, w.h.Address(harness.Gateway), i, holder.token) {
				kept[i%len(dawdlers)].Add(1)
			}
		})
	}
	began, calls := time.Now(), 0
	for ctx.Err() == nil {
		clients := map[agent]*http.Client{normal: connection}
		if time.Since(began) > slowTime/5 {
			// Once the crowd stands. Each of its calls comes on a connection that nobody knows yet.
			clients[late] = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: callTime}
		}
		for a, client := range clients {
			calls++
			if err := call(client, a); err != nil {
				w.t.Logf("a call beside the crowd: %v", err)
				effects++
			}
		}
		w.pause(ctx, 200*time.Millisecond)
	}
	crowd.Wait()
	for i := range kept {
		n := int(kept[i].Load())
		if i == len(dawdlers)-1 {
			// What it could be answered it was answered, and it idles like any client's connection: a client has so many.
			n -= connectionsPerClient
		}
		if n > 0 {
			w.t.Logf("%d connections that send %s are kept after %s", n, dawdlers[i], slowTime)
			effects += n
		}
	}
	w.t.Logf("%d calls beside %d slow connections", calls, slowCount)
	return trials + calls, effects
}

// dawdlers are the kinds of slow connections.
var dawdlers = [4]string{"headers", "a stranger's body", "a client's body", "requests, and read nothing,"}

// dawdle is one slow connection. It reports whether the server still kept it when ctx ended.
func dawdle(ctx context.Context, address string, i int, token string) bool {
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		// A small window, so that what nobody reads is soon in the server's way.
		var err error
		if other := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }); other != nil {
			return other
		}
		return err
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	const head = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
	send := func(s string) bool {
		_, err := io.WriteString(conn, s)
		return err == nil
	}
	drip := func(s string) bool {
		for j := range len(s) {
			if !send(s[j : j+1]) {
				return false
			}
			select {
			case <-ctx.Done():
				return true
			case <-time.After(500 * time.Millisecond):
			}
		}
		return true
	}
	kept := false
	switch i % len(dawdlers) {
	case 0:
		kept = drip(head + strings.Repeat("X-Filler: aaaaaaaaaaaaaaaa\r\n", 20))
	case 1:
		kept = send(head+"Authorization: Bearer nobody\r\nContent-Length: 60000\r\n\r\n") && drip(strings.Repeat(" ", 1000))
	case 2:
		kept = send(head+"Authorization: Bearer "+token+"\r\nContent-Length: 60000\r\n\r\n") && drip(strings.Repeat(" ", 1000))
	default:
		list := harness.Stateless(token, "tools/list", "", "{}")
		request := head + "Authorization: Bearer " + token + "\r\n"
		for name, value := range list.Header {
			request += name + ": " + value + "\r\n"
		}
		request += fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(list.Body), list.Body)
		send(strings.Repeat(request, 40))
		<-ctx.Done()
		return established(conn)
	}
	if !kept {
		return false
	}
	// What was sent into a closed connection may not have failed yet: ask whether the other side is there.
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return false
	}
	_, err = bufio.NewReader(conn).ReadByte()
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// established reports whether the other side keeps a connection, by its end of it in the kernel's table. What it closed stays open at the end
// that reads nothing, for as long as something is left to be read.
func established(conn net.Conn) bool {
	ours, err := netip.ParseAddrPort(conn.LocalAddr().String())
	theirs, other := netip.ParseAddrPort(conn.RemoteAddr().String())
	sockets, unread := procfs.Sockets("/proc/thread-self")
	return errors.Join(err, other, unread) != nil || slices.ContainsFunc(sockets, func(s procfs.Socket) bool {
		return s.Local == theirs && s.Remote == ours && s.State == procfs.Established
	})
}

// flooded is how many requests a flood has, and in a sample, and floodAllowance how many of them may be recorded at once; beyond,
// floodPerSecond.
const (
	flooded        = 6000
	someFlooded    = 2000
	floodAllowance = 250
	floodPerSecond = 25
)

// refusalFlood sends what is refused as fast as it goes: strangers, agents with bad input, agents that ask for tools which do
// not exist. Its effects are records of it beyond what the gateway may write, and a gateway that does not serve any more.
func refusalFlood(w *world) (trials, effects int) {
	own := w.agent()
	session := w.h.ConnectRaw(own.token)
	recorded := func() int {
		return w.query(harness.Audit, `SELECT count(*) FROM entries WHERE kind = ?`, int(auditv1.Kind_KIND_REFUSED))
	}
	before, began := recorded(), time.Now()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, MaxConnsPerHost: 8}, Timeout: callTime}
	defer client.CloseIdleConnections()
	bad := []harness.RawRequest{
		{Token: "nobody", Body: []byte(`{}`)},
		{Token: own.token, Body: []byte(`{"jsonrpc":"2.0"`)},
		session.Call("format_disk", `{}`),
		session.Call("start_service", `{"service_id":"../../etc/passwd"}`),
		session.Request([]byte(`{"jsonrpc":"2.0","id":1,"method":"durward/approve"}`)),
		{Token: own.token, Header: map[string]string{"Origin": "https://evil.example"}, Body: []byte(`{}`)},
	}
	jobs := make(chan harness.RawRequest)
	var sending sync.WaitGroup
	for range 8 {
		sending.Go(func() {
			for r := range jobs {
				if request, err := r.HTTP(w.t.Context(), w.h.MCPURL()); err == nil {
					if response, err := client.Do(request); err == nil {
						_, _ = io.Copy(io.Discard, response.Body)
						_ = response.Body.Close()
					}
				}
			}
		})
	}
	for trials < w.size(flooded, someFlooded) && time.Since(began) < 20*time.Second {
		jobs <- bad[trials%len(bad)]
		trials++
	}
	close(jobs)
	sending.Wait()
	w.pause(w.t.Context(), 2*time.Second) // records arrive through a spool
	allowed := floodAllowance + int(time.Since(began).Seconds()*floodPerSecond)
	count := recorded() - before
	if effects = max(0, count-allowed); effects > 0 {
		w.t.Logf("%d records of %d refusals within %s", count, trials, time.Since(began).Round(time.Millisecond))
	}
	// A gateway that records nothing would pass, and so would one that fell over.
	if a := w.raw(harness.StatelessCall(w.agent().token, "list_services", "{}")); count == 0 || status(a) != "ok" {
		w.t.Logf("%d records; a call afterwards: %d %s", count, a.HTTPStatus, a.Body)
		effects++
	}
	return trials, effects
}
