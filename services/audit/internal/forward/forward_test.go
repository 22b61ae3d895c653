package forward

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest/syslogtest"
	"durward.internal/services/platform/platformtest/testfile"
)

const origin = "durward.local/audit/main"

// audit is a log of records that can be away, be put back or rewritten.
type audit struct {
	mu      sync.Mutex
	records []*auditv1.ForwardedRecord
	down    bool
	skip    bool
	last    *auditv1.ReadRecordsRequest
}

func leaf(i int, history byte) []byte {
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint64(nil, uint64(i)), history))
	return sum[:]
}

func (a *audit) grow(n int, history byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range n {
		i := len(a.records)
		a.records = append(a.records, &auditv1.ForwardedRecord{
			Index: uint64(i), Writer: "spiffe://durward.local/executor/local", LoggedAt: timestamppb.Now(), LeafHash: leaf(i, history),
			Record: &auditv1.Record{Sequence: uint64(i + 1), Kind: auditv1.Kind_KIND_OUTCOME, Time: timestamppb.Now(), Tool: "start_service", Body: &auditv1.Body{Summary: fmt.Sprint("record ", i)}},
		})
	}
}

func (a *audit) ReadRecords(_ context.Context, req *auditv1.ReadRecordsRequest, _ ...grpc.CallOption) (*auditv1.ReadRecordsResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = req
	from, size := req.GetFromIndex(), uint64(len(a.records))
	switch {
	case a.down:
		return nil, status.Error(codes.Unavailable, "down")
	case from > size:
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the log is shorter than that")
	}
	out := &auditv1.ReadRecordsResponse{Size: size, Records: a.records[from:min(size, from+uint64(req.GetLimit()))]}
	if from > 0 {
		out.Before = a.records[from-1].GetLeafHash()
	}
	if a.skip && len(out.Records) > 1 {
		out.Records = out.Records[1:]
	}
	return out, nil
}

func forwarder(t *testing.T, a *audit, dir string, to Destination) *Forwarder {
	t.Helper()
	f, err := New(Config{Audit: a, Name: "siem", To: to, Origin: origin, Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// kept collects what it is given.
type kept struct {
	got    []uint64
	fail   error
	poison uint64 // refused, if not 0
}

func (k *kept) Send(_ context.Context, records []*auditv1.ForwardedRecord) error {
	if k.fail != nil {
		return k.fail
	}
	for _, r := range records {
		if r.GetIndex() == k.poison && k.poison > 0 {
			return &Refused{Why: "1 records of the batch"}
		}
	}
	for _, r := range records {
		k.got = append(k.got, r.GetIndex())
	}
	return nil
}

// TestHolds: nothing goes on where something is wrong with the log or the destination, and what it is gets to audit.
func TestHolds(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(a *audit, k *kept)
		want  string
	}{
		{"audit is away", func(a *audit, _ *kept) { a.down = true }, "audit: "},
		{"the log was put back", func(a *audit, _ *kept) { a.records = a.records[:5] }, "THE LOG WAS PUT BACK"},
		{"the log was rewritten", func(a *audit, _ *kept) { a.records = nil; a.grow(40, 'x') }, "THE LOG WAS REWRITTEN: its record 9"},
		{"audit leaves out a record", func(a *audit, _ *kept) { a.skip = true }, "audit leaves out records: 11 where 10 comes next"},
		{"the collector is away", func(_ *audit, k *kept) { k.fail = errors.New("connection\nrefused") }, "connection refused"},
		{"the collector refuses", func(_ *audit, k *kept) { k.poison = 11 }, "record 11, or one of the 0 after it: the collector refuses"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, k := &audit{}, &kept{}
			a.grow(10, 0)
			f := forwarder(t, a, t.TempDir(), k)
			if more, err := f.Step(t.Context()); err != nil || !more || len(k.got) != 10 {
				t.Fatalf("%v, %v", k.got, err)
			}
			a.grow(4, 0)
			tc.spoil(a, k)
			for range 6 {
				_, err := f.Step(t.Context())
				f.say(t.Context(), err)
			}
			if !strings.Contains(f.problem, tc.want) || strings.Contains(f.problem, "\n") {
				t.Errorf("%q, want %q", f.problem, tc.want)
			}
			if _, err := f.Step(t.Context()); err == nil || a.last.GetProblem() != f.problem {
				t.Errorf("audit was told %q: %v", a.last.GetProblem(), err)
			}
			// What stands before the one that is refused is taken.
			if n := len(k.got); n != 10 && (tc.name != "the collector refuses" || n != 11) {
				t.Errorf("the destination has %v", k.got)
			}
		})
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"nonsense": "{", "another log's": `{"log":"other","next":4,"leaf":""}`} {
		testfile.Write(t, filepath.Join(dir, "forwarded-siem"), text)
		if _, err := New(Config{Name: "siem", Origin: origin, Dir: dir}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestFolderIsGone: what cannot be kept is not taken for done.
func TestFolderIsGone(t *testing.T) {
	a, k, dir := &audit{}, &kept{}, t.TempDir()
	a.grow(3, 0)
	f := forwarder(t, a, filepath.Join(dir, "absent"), k)
	for range 2 {
		if _, err := f.Step(t.Context()); err == nil {
			t.Error("taken for kept")
		}
	}
	if len(k.got) != 6 || f.at.Next != 0 {
		t.Errorf("%v", k.got)
	}
}

// inOrder fails unless every record of the log is among those, the first of each in order.
func inOrder(t *testing.T, got []uint64, want int) (doubled int) {
	t.Helper()
	next := uint64(0)
	for _, i := range got {
		switch {
		case i == next:
			next++
		case i > next:
			t.Fatalf("record %d came before %d", i, next)
		default:
			doubled++
		}
	}
	if next != uint64(want) {
		t.Errorf("%d of %d records came", next, want)
	}
	return doubled
}

func (a *audit) whole(t *testing.T, receiver *syslogtest.Receiver) []uint64 {
	t.Helper()
	messages, broken := receiver.Got()
	if len(broken) > 0 {
		t.Errorf("not syslog: %q", broken)
	}
	var got []uint64
	for _, m := range messages {
		i, err := strconv.ParseUint(m.Parameters["index"], 10, 64)
		if err != nil || m.Text != fmt.Sprint("record ", i) || m.Parameters["leaf"] != hash(leaf(int(i), 0)) {
			t.Fatalf("%v: %q", err, m.Raw)
		}
		got = append(got, i)
	}
	return got
}

func always(secure *tls.Config) func() (*tls.Config, error) {
	return func() (*tls.Config, error) { return secure, nil }
}

func syslog(receiver *syslogtest.Receiver) *Syslog {
	return NewSyslog(SyslogConfig{
		Dial: (&net.Dialer{}).DialContext, Address: receiver.Address, TLS: always(receiver.TLS()), Origin: origin, Host: "host.example", MaxMessage: LeastMessage,
	})
}

// hasty writes as Syslog does, and waits for no word of the receiver's.
type hasty struct{ *Syslog }

func (h hasty) Send(ctx context.Context, records []*auditv1.ForwardedRecord) error {
	raw, err := h.cfg.Dial(ctx, "tcp", h.cfg.Address)
	if err != nil {
		return err
	}
	secure, err := h.cfg.TLS()
	if err != nil {
		return err
	}
	conn := tls.Client(raw, secure)
	for _, r := range records {
		m := h.message(r)
		if _, err := fmt.Fprintf(conn, "%d %s", len(m), m); err != nil {
			return nil //nolint:nilerr // as those do that write and forget
		}
	}
	return conn.CloseWrite()
}

// TestSyslogLosesNothing: a receiver that is killed in the middle of batches and started again, a forwarder that is started again and an
// audit that is away: every record comes, in order. Without the wait for the receiver's word some are lost.
func TestSyslogLosesNothing(t *testing.T) {
	for _, waits := range []bool{true, false} {
		receiver := syslogtest.New(t)
		a, dir, want := &audit{}, t.TempDir(), 0
		var to Destination = syslog(receiver)
		if !waits {
			to = hasty{syslog(receiver)}
		}
		for round := range 12 {
			a.grow(100, 0)
			want += 100
			f := forwarder(t, a, dir, to) // started again
			receiver.DieAfter(1 + 17*round%90)
			_, err := f.Step(t.Context())
			if !receiver.Dead() && waits {
				t.Fatalf("round %d: the receiver lives: %v", round, err)
			}
			if _, err := f.Step(t.Context()); err == nil && waits {
				t.Fatal("a dead receiver has everything")
			}
			receiver.Kill()
			receiver.Start()
			a.down = true
			if _, err := f.Step(t.Context()); err == nil {
				t.Fatal("an audit that is away has records")
			}
			a.down = false
			for more := true; more; {
				if more, err = f.Step(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if waits {
			if doubled := inOrder(t, a.whole(t, receiver), want); doubled == 0 {
				t.Error("nothing came twice: no batch was interrupted")
			}
			continue
		}
		seen := map[uint64]bool{}
		for _, i := range a.whole(t, receiver) {
			seen[i] = true
		}
		if len(seen) == want {
			t.Error("nothing was lost without the wait: this test shows nothing")
		}
	}
}

// TestCloseUnsaid: a receiver that ends a connection without TLS's word has said nothing, unless the operator's file takes that for a
// word.
func TestCloseUnsaid(t *testing.T) {
	receiver := syslogtest.New(t)
	receiver.Unsaid = true
	a, to := &audit{}, syslog(receiver)
	a.grow(3, 0)
	if err := to.Send(t.Context(), a.records); !errors.Is(err, errUnsaid) {
		t.Errorf("%v", err)
	}
	to.cfg.CloseUnsaid = true
	if err := to.Send(t.Context(), a.records); err != nil {
		t.Error(err)
	}
	// The wrong certificate gets not a byte.
	other := syslogtest.New(t)
	to.cfg.TLS = always(other.TLS())
	if err := to.Send(t.Context(), a.records); err == nil {
		t.Error("another authority's receiver was spoken to")
	}
	if got := a.whole(t, receiver); len(got) != 6 {
		t.Errorf("%v", got)
	}
}

// TestReceiverThatLeaves: one that ends in order, with most of a batch unread in its socket, has not got it, though it says close_notify.
func TestReceiverThatLeaves(t *testing.T) {
	receiver := syslogtest.New(t)
	receiver.Leaves = true
	a := &audit{}
	a.grow(250, 0)
	for _, r := range a.records { // more than a receiver has read by the first message, and less than sockets hold
		r.Record.Body.DecisionSource = strings.Repeat("x", 500)
	}
	for range 20 {
		if err := syslog(receiver).Send(t.Context(), a.records); err == nil {
			t.Fatal("it is believed to have everything")
		}
	}
}

// hostile are values that would end a value, an element, a message or a line where they stood as they are.
var hostile = []string{
	"\"] forged=\"yes", `\"] [x@1 y="z"]`, `]`, `"`, `\`, `\\`, "a\nb", "\r\n<109>1 2026-01-01T00:00:00Z h durward - approved [durward@32473 index=\"1\"] forged",
	"\x00", "\x1b[2J", "\u202e\u2066", "\u0085\u2028\u2029", "\xff\xfe\x80", "122 <109>1 - - - - - -", strings.Repeat("\n", 1<<20), strings.Repeat("]\"", 1<<19),
	strings.Repeat("\xff", 1<<20), strings.Repeat("é", 1<<19), strings.Repeat(`\`, 8193), strings.Repeat(`\`, 8192),
}

// TestHostileText: whatever a record says, one message comes out of it, with its own index, no control character and no more bytes than
// a receiver takes. Written as it is, the same text forges.
func TestHostileText(t *testing.T) {
	forged := 0
	for i, text := range hostile {
		r := &auditv1.ForwardedRecord{
			Index: 7, Writer: text, LeafHash: leaf(7, 0), LoggedAt: timestamppb.Now(),
			Record: &auditv1.Record{
				Sequence: 3, Kind: auditv1.Kind_KIND_DENIED, Time: timestamppb.Now(), RequestId: text, OperationId: text, Tool: text,
				Body: &auditv1.Body{
					Principal: text, Session: text, Source: text, Arguments: text, Summary: text, Action: text, Reason: text, DecisionSource: text,
					ParentRequestId: text, Details: map[string]string{"forged": text, text: text},
				},
			},
		}
		for _, most := range []int{LeastMessage, 65536} {
			s := NewSyslog(SyslogConfig{Origin: origin, Host: text, MaxMessage: most})
			raw := string(s.message(r))
			m, err := syslogtest.Parse(raw)
			if err != nil || len(raw) > most || m.Parameters["index"] != "7" || m.Parameters["kind"] != "denied" || m.Parameters["forged"] != "" || m.ID != "denied" {
				t.Errorf("text %d, %d bytes: %d bytes, %v: %.300q", i, most, len(raw), err, raw)
			}
		}
		// The control.
		naive := fmt.Sprintf("<109>1 2026-01-01T00:00:00Z h durward - denied [durward@32473 index=\"7\" principal=\"%s\"] %s", text, text)
		if m, err := syslogtest.Parse(naive); err != nil || strings.Contains(naive, "\n") || len(naive) > LeastMessage || m.Parameters["forged"] != "" {
			forged++
		}
		if len(text) > 1<<16 {
			continue // more than the contract lets a record say
		}
		otlp := NewOTLP(nil, origin).record(r)
		_, err := proto.Marshal(otlp) // which takes UTF-8 alone
		for _, a := range otlp.GetAttributes() {
			if strings.ContainsAny(a.GetKey()+a.GetValue().GetStringValue(), "\n\x1b\u202e\u2028") {
				t.Errorf("text %d by OTLP: %q", i, a.GetKey())
			}
		}
		if err != nil {
			t.Errorf("text %d by OTLP: %v", i, err)
		}
	}
	if forged < len(hostile)-4 { // those that are only long, or well escaped by chance
		t.Errorf("%d of %d texts forge where they stand as they are: this test shows little", forged, len(hostile))
	}
	// What is harmless comes whole.
	r := &auditv1.ForwardedRecord{Index: 1, Record: &auditv1.Record{
		Kind: auditv1.Kind_KIND_INTENT, Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)),
		Body: &auditv1.Body{Summary: "Größe \"x\"", Arguments: `{"a":["\n"]}`, Details: map[string]string{"k": `"]`}},
	}}
	m, err := syslogtest.Parse(string(NewSyslog(SyslogConfig{Origin: origin, Host: "h", MaxMessage: LeastMessage}).message(r)))
	if err != nil || m.Text != "Größe \"x\"" || m.Parameters["arguments"] != `{"a":["\n"]}` || m.Parameters["details"] != `{"k":"\"]"}` || m.Time != "2026-01-02T03:04:05.000006Z" || m.Priority != 110 {
		t.Errorf("%+v, %v", m, err)
	}
}

// collector takes OTLP logs, or answers as it is told to.
type collector struct {
	mu     sync.Mutex
	got    []uint64
	uids   []string
	answer func() (any, error)
	dies   int // after so many batches it hangs up before it answers
	server *grpc.Server
	addr   string
}

func (c *collector) start(t *testing.T) {
	t.Helper()
	at := c.addr
	if at == "" {
		at = "127.0.0.1:0"
	}
	lis, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if name, _ := grpc.MethodFromServerStream(stream); name != "/opentelemetry.proto.collector.logs.v1.LogsService/Export" {
			return status.Error(codes.Unimplemented, name)
		}
		in := &logspb.LogsData{}
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		answer, err := c.take(in)
		if err != nil {
			return err
		}
		return stream.SendMsg(answer)
	}))
	c.mu.Lock()
	c.server, c.addr = server, lis.Addr().String()
	c.mu.Unlock()
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
}

func (c *collector) take(in *logspb.LogsData) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answer != nil {
		return c.answer()
	}
	for _, r := range in.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
		for _, a := range r.GetAttributes() {
			switch a.GetKey() {
			case "durward.index":
				i, _ := strconv.ParseUint(a.GetValue().GetStringValue(), 10, 64)
				c.got = append(c.got, i)
			case "log.record.uid":
				c.uids = append(c.uids, a.GetValue().GetStringValue())
			}
		}
	}
	if c.dies > 0 {
		if c.dies--; c.dies == 0 {
			go c.server.Stop() // it has the batch, and its answer is lost
			return nil, status.Error(codes.Unavailable, "stopping")
		}
	}
	return &emptypb.Empty{}, nil
}

// TestOTLPLosesNothing: a collector that is killed before it answers and started again, and forwarders that are started again.
func TestOTLPLosesNothing(t *testing.T) {
	c := &collector{}
	c.start(t)
	conn, err := grpc.NewClient("passthrough:///"+c.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	a, dir, want := &audit{}, t.TempDir(), 0
	for range 5 {
		a.grow(600, 0)
		want += 600
		f := forwarder(t, a, dir, NewOTLP(conn, origin))
		c.mu.Lock()
		c.dies = 2
		c.mu.Unlock()
		for failed, more := 0, true; more || failed == 0; {
			var err error
			if more, err = f.Step(t.Context()); err != nil {
				if failed++; failed > 5 {
					t.Fatal(err)
				}
				c.server.Stop()
				c.start(t)
				conn.ResetConnectBackoff()
				more = true
			}
		}
	}
	if doubled := inOrder(t, c.got, want); doubled == 0 {
		t.Error("nothing came twice: no batch was interrupted")
	}
	if c.uids[0] != origin+"/0" {
		t.Errorf("its id is %q", c.uids[0])
	}
}

// TestOTLPRefuses: what a collector refuses of a batch is not taken for there, whichever way it says so.
func TestOTLPRefuses(t *testing.T) {
	c := &collector{}
	c.start(t)
	conn, err := grpc.NewClient("passthrough:///"+c.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	a := &audit{}
	a.grow(2, 0)
	said := func(b []byte) func() (any, error) {
		return func() (any, error) {
			out := &emptypb.Empty{}
			out.ProtoReflect().SetUnknown(b)
			return out, nil
		}
	}
	partly := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2))
	warning := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "slow down"))
	for name, tc := range map[string]struct {
		answer  func() (any, error)
		refused bool
		fails   bool
	}{
		"two of the batch": {said(partly), true, true},
		"all of it":        {func() (any, error) { return nil, status.Error(codes.InvalidArgument, "\x1b[2J") }, true, true},
		"busy":             {func() (any, error) { return nil, status.Error(codes.Unavailable, "later") }, false, true},
		"a warning":        {said(warning), false, false},
		"nothing":          {said(nil), false, false},
	} {
		c.answer = tc.answer
		err := NewOTLP(conn, origin).Send(t.Context(), a.records)
		if refused := (*Refused)(nil); (err != nil) != tc.fails || errors.As(err, &refused) != tc.refused || err != nil && strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
