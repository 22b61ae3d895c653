package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
)

const (
	// facility is log audit (13).
	facility = 13
	// enterprise is the number that RFC 5612 sets apart for examples: this project has none of its own.
	enterprise = "32473"
	// LeastMessage is the longest message, in bytes, unless told: RFC 5425 wants every receiver to take 8192, and rsyslog takes 8096. A
	// longer one is cut there, or its rest is read as a message. MostMessage holds every record that the contract allows.
	LeastMessage = 8000
	MostMessage  = 1 << 20
	// cutMark ends a value that was cut.
	cutMark = "…"
	// lateClose is how long the end of a connection is waited for behind the end of its stream.
	lateClose = 2 * time.Second
)

// SyslogConfig is what a Syslog needs; all but CloseUnsaid is required.
type SyslogConfig struct {
	// Dial connects to HOST:PORT.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Address string
	// TLS returns what the next connection is made with.
	TLS func() (*tls.Config, error)
	// Origin is the log's name, Host the one that messages name as theirs.
	Origin, Host string
	// MaxMessage bounds a message, in bytes.
	MaxMessage int
	// CloseUnsaid takes the end of the TCP connection for an acknowledgement.
	CloseUnsaid bool
}

// Syslog sends records as RFC 5424's messages over TLS, as RFC 5425 frames them. Syslog has no acknowledgement, but TLS has one: whoever
// has read everything up to our close_notify must answer with its own (RFC 5425, 4.4). Each batch has a connection of its own, which ends
// so. A receiver that was killed, or cut off, before it had read all does not answer, and the batch goes again. One that ends in order with
// something unread sends close_notify too: that comes before ours, or its kernel resets the connection.
type Syslog struct{ cfg SyslogConfig }

// NewSyslog returns a destination. There is no kept library of Go's that waits for that answer: those that speak RFC 5424 write and
// forget.
func NewSyslog(cfg SyslogConfig) *Syslog { return &Syslog{cfg: cfg} }

// errUnsaid is the end of a connection without close_notify.
var errUnsaid = errors.New("the receiver ended the connection without TLS's close_notify: what it has of the batch is not known")

// errEarly is the end of a receiver that has not read the batch.
var errEarly = errors.New("the receiver ended the connection before it had everything")

// unsaid tells the end of a TCP connection from that of TLS's stream, which crypto/tls does not.
type unsaid struct{ net.Conn }

func (u unsaid) Read(p []byte) (int, error) {
	n, err := u.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = errUnsaid
	}
	return n, err
}

// Send implements Destination.
func (s *Syslog) Send(ctx context.Context, records []*auditv1.ForwardedRecord) error {
	secure, err := s.cfg.TLS()
	if err != nil {
		return err
	}
	raw, err := s.cfg.Dial(ctx, "tcp", s.cfg.Address)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	tcp := raw
	if !s.cfg.CloseUnsaid {
		raw = unsaid{raw}
	}
	conn := tls.Client(raw, secure)
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS with the receiver: %w", err)
	}
	answered := make(chan error, 1)
	go func() {
		var one [1]byte
		_, err := conn.Read(one[:])
		answered <- err
	}()
	var frames []byte
	for _, r := range records {
		message := s.message(r)
		frames = append(strconv.AppendInt(frames, int64(len(message)), 10), ' ')
		frames = append(frames, message...)
	}
	if _, err := conn.Write(frames); err != nil {
		return fmt.Errorf("the receiver takes no more: %w", err)
	}
	select {
	case err := <-answered:
		return fmt.Errorf("%w: %w", errEarly, cmp.Or(err, errors.New("it answers")))
	default:
	}
	if err := conn.CloseWrite(); err != nil {
		return fmt.Errorf("the receiver takes no more: %w", err)
	}
	switch err := <-answered; {
	case errors.Is(err, io.EOF):
		return leftover(tcp)
	case err == nil:
		return errors.New("the receiver answers, and speaks no syslog")
	default:
		return fmt.Errorf("no word from the receiver that it has everything: %w", err)
	}
}

// leftover reports whether a receiver that has ended its stream left something of the batch unread, which its kernel answers with a reset.
// One that closes its side of the connection late has read all as far as anybody knows.
func leftover(tcp net.Conn) error {
	if half, ok := tcp.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // a receiver may wait for that
	}
	_ = tcp.SetReadDeadline(time.Now().Add(lateClose))
	if _, err := io.Copy(io.Discard, tcp); errors.Is(err, syscall.ECONNRESET) {
		return errEarly
	}
	return nil
}

// message is a record as RFC 5424 has it. Nothing that a record says can end a value, an element or the message: control characters
// of every kind stand there as visible escapes, and the three characters that mean something in a value behind a backslash.
func (s *Syslog) message(r *auditv1.ForwardedRecord) []byte {
	at := "-"
	if t := r.GetRecord().GetTime(); t.IsValid() {
		at = t.AsTime().UTC().Format("2006-01-02T15:04:05.000000Z")
	}
	// Values are bounded as they are sent, so that head and message leave a tenth at least for arguments and details.
	short := s.cfg.MaxMessage / 40
	var head, long strings.Builder
	fmt.Fprintf(&head, "<%d>1 %s %s durward - %s [durward@%s log=\"%s\"", facility*8+levelOf(r).syslog, at, header(s.cfg.Host, 64),
		header(kindOf(r), 32), enterprise, bounded(s.cfg.Origin, short, value))
	arguments := ""
	for _, f := range fields(r) {
		if f.name == "arguments" {
			arguments = f.value
			continue
		}
		fmt.Fprintf(&head, " %s=\"%s\"", f.name, bounded(f.value, short, value))
	}
	// The summary is short by the contract; it is bounded here all the same.
	message := bounded(said(r), s.cfg.MaxMessage/4, clean.Visible)
	left := s.cfg.MaxMessage - head.Len() - len(message) - len("] ")
	// The names of details are a writer's, and so they are no parameters' names.
	details := ""
	if all := r.GetRecord().GetBody().GetDetails(); len(all) > 0 {
		b, err := json.Marshal(all)
		if err == nil {
			details = string(b)
		}
	}
	for _, f := range []entry{{"arguments", arguments}, {"details", details}} {
		frame := len(f.name) + len(` =""`)
		if room := left - long.Len() - frame; f.value != "" && room > len(cutMark) {
			fmt.Fprintf(&long, " %s=\"%s\"", f.name, bounded(f.value, room, value))
		}
	}
	return []byte(head.String() + long.String() + "] " + message)
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`)

// value is text as a parameter's value.
func value(s string) string { return escapes.Replace(clean.Visible(s)) }

// bounded is text as escape writes it, which makes nothing shorter, in so many bytes. It is never cut within a character, or behind the
// backslash of one.
func bounded(text string, most int, escape func(string) string) string {
	s := escape(text[:min(len(text), most+1)])
	if len(s) <= most {
		return s
	}
	end := most - len(cutMark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	slashes := 0
	for slashes < end && s[end-1-slashes] == '\\' {
		slashes++
	}
	return s[:end-slashes%2] + cutMark
}

// header is text as a header's field: printable ASCII, "-" for none.
func header(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, s)
	if s = s[:min(len(s), most)]; s == "" {
		return "-"
	}
	return s
}
