package connlimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"durward.internal/gateway/internal/limit"
)

// serveCounted serves HTTP over counted connections: the path names the principal that a request is of, "/-" nobody. A request
// to /…/hold is answered when release is closed.
func serveCounted(t *testing.T, conf limit.Config) (address string, conns *Conns, release chan struct{}) {
	t.Helper()
	if err := conf.Validate(); err != nil {
		t.Fatal(err)
	}
	conns, release = New(conf), make(chan struct{})
	conns.moved = make(chan struct{}, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, ConnContext: conns.Context,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			principal, held := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/hold")
			if principal != "-" {
				c := Of(r.Context())
				if !c.Serve(principal) {
					w.WriteHeader(http.StatusTooManyRequests)
					return
				}
				defer c.Done()
			}
			if held {
				<-release
			}
		}),
	}
	go func() { _ = server.Serve(conns.Listen(l)) }()
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String(), conns, release
}

type client struct {
	t *testing.T
	net.Conn
	answers *bufio.Reader
}

func dial(t *testing.T, address string) *client {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) send(principal string) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c, "GET /%s HTTP/1.1\r\nHost: x\r\n\r\n", principal); err != nil {
		c.t.Fatal(err)
	}
}

// status reads an answer; 0: the connection is closed.
func (c *client) status() int {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	response, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout") {
			c.t.Fatal("no answer")
		}
		return 0
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		c.t.Error(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func (c *client) ask(principal string) int {
	c.t.Helper()
	c.send(principal)
	return c.status()
}

// settled waits until there are so many connections, counted in all, strangers', and idle ones.
func settled(t *testing.T, conns *Conns, all, strangers, idle int) {
	t.Helper()
	for late := time.After(30 * time.Second); ; {
		var got [3]int
		if got[0], got[1], got[2] = conns.Count(); got == [3]int{all, strangers, idle} {
			return
		}
		select {
		case <-conns.moved:
		case <-late:
			t.Fatalf("%v connections in all, of strangers, idle; want %d, %d, %d", got, all, strangers, idle)
		}
	}
}

// Connections that show no accepted token push out each other, and never a client that works.
func TestStrangersPushOutStrangers(t *testing.T) {
	address, conns, _ := serveCounted(t, limit.Config{Connections: 64, ConnectionsOfStrangers: 4})
	works := dial(t, address)
	if works.ask("ada") != http.StatusOK {
		t.Fatal("the first client is refused")
	}
	settled(t, conns, 1, 0, 1)
	var slow []*client
	for i := range 4 {
		slow = append(slow, dial(t, address))
		settled(t, conns, i+2, i+1, 1)
	}
	if slow[1].ask("-") != http.StatusOK {
		t.Fatal("a stranger's request is not answered")
	}
	for i := range 3 {
		dial(t, address)
		if slow[i].status() != 0 {
			t.Fatalf("stranger %d is still there", i)
		}
	}
	settled(t, conns, 5, 4, 1)
	if works.ask("ada") != http.StatusOK {
		t.Error("the client that works lost its connection")
	}
	if fresh := dial(t, address); fresh.ask("grace") != http.StatusOK {
		t.Error("a new client does not get in")
	}
}

// At the cap in all, idle clients' connections go next, those that serve a request never.
func TestCapInAll(t *testing.T) {
	address, conns, release := serveCounted(t, limit.Config{Connections: 16, ConnectionsOfStrangers: 16})
	var busy, idle []*client
	for i := range 15 {
		c := dial(t, address)
		c.send(fmt.Sprintf("p%d/hold", i))
		busy = append(busy, c)
	}
	settled(t, conns, 15, 0, 0)
	idle = append(idle, dial(t, address))
	if idle[0].ask("ada") != http.StatusOK {
		t.Fatal("the last place is refused")
	}
	settled(t, conns, 16, 0, 1)
	late := dial(t, address)
	if idle[0].status() != 0 {
		t.Error("the idle connection did not make room")
	}
	settled(t, conns, 16, 1, 0)
	late.send("q/hold")
	settled(t, conns, 16, 0, 0)
	if dial(t, address).status() != 0 {
		t.Error("there was room for one too many")
	}
	close(release)
	for i, c := range append(busy, late) {
		if c.status() != http.StatusOK {
			t.Errorf("connection %d lost its answer", i)
		}
	}
}

func TestCapOfAPrincipal(t *testing.T) {
	address, conns, release := serveCounted(t, limit.Config{ConnectionsPerPrincipal: 2})
	first, second := dial(t, address), dial(t, address)
	if first.ask("ada") != http.StatusOK || second.ask("ada") != http.StatusOK {
		t.Fatal("two are allowed")
	}
	settled(t, conns, 2, 0, 2)
	third := dial(t, address)
	if third.ask("ada") != http.StatusOK || first.status() != 0 {
		t.Error("a third must push out the one that has been idle longest")
	}
	second.send("ada/hold")
	third.send("ada/hold")
	settled(t, conns, 2, 0, 0)
	fourth := dial(t, address)
	if fourth.ask("ada") != http.StatusTooManyRequests {
		t.Error("a fourth beside two that are busy must be refused")
	}
	if fourth.ask("grace") != http.StatusOK {
		t.Error("another principal is refused")
	}
	close(release)
	if second.status() != http.StatusOK || third.status() != http.StatusOK {
		t.Error("a request that was under way was lost")
	}
	// A connection belongs to whoever used it last, as behind a proxy.
	settled(t, conns, 3, 0, 3)
	if second.ask("grace") != http.StatusOK || fourth.ask("ada") != http.StatusOK {
		t.Error("connections could not change hands")
	}
	for _, c := range []*client{second, third, fourth} {
		_ = c.Close()
	}
	settled(t, conns, 0, 0, 0)
	conns.mu.Lock()
	defer conns.mu.Unlock()
	if len(conns.counts) != 0 {
		t.Errorf("principals are left: %v", conns.counts)
	}
}

// A client that does not read its answer loses its connection, and one that reads slowly does not.
func TestClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := New(limit.Config{Connections: 16, ConnectionsOfStrangers: 16})
		ours, theirs := net.Pipe()
		c := &Conn{Conn: ours, conns: conns}
		go func() {
			one := make([]byte, 1)
			for range 10 {
				time.Sleep(writeTimeout / 2)
				if _, err := theirs.Read(one); err != nil {
					t.Error(err)
				}
			}
		}()
		for i := range 10 {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatalf("byte %d: %v", i, err)
			}
		}
		began := time.Now()
		if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != writeTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestGuardsStand: a listener's connections are counted.
func TestGuardsStand(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, ok := counted(l, new(Conns)).(*listener); !ok {
		t.Error("connections are not counted")
	}
}
