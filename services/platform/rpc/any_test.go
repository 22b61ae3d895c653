package rpc_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
)

// standby is an audit that answers as the test says.
type standby struct {
	auditv1.UnimplementedLogServiceServer
	auditv1.UnimplementedHistoryServiceServer
	mu    sync.Mutex
	fail  error
	calls int
}

// told returns what this call is to be answered with.
func (s *standby) told() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return s.fail
}

// becomes sets what calls are answered with from now on, and counts them anew.
func (s *standby) becomes(fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail, s.calls = fail, 0
}

func (s *standby) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *standby) GetHead(ctx context.Context, _ *auditv1.GetHeadRequest) (*auditv1.GetHeadResponse, error) {
	fail := s.told()
	if errors.Is(fail, context.DeadlineExceeded) {
		<-ctx.Done()
	}
	return &auditv1.GetHeadResponse{}, fail
}

func (s *standby) TailRecords(_ *auditv1.TailRecordsRequest, stream grpc.ServerStreamingServer[auditv1.TailRecordsResponse]) error {
	if fail := s.told(); fail != nil {
		return fail
	}
	if err := stream.Send(&auditv1.TailRecordsResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// nobody is an address at which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer lis.Close()
	return lis.Addr().String()
}

// TestAny: calls go to the next process once one cannot do its work, and no call is repeated.
func TestAny(t *testing.T) {
	kit := platformtest.New(t)
	first, second := &standby{}, &standby{}
	var addresses []string
	for _, s := range []*standby{first, second} {
		addresses = append(addresses, kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) {
			auditv1.RegisterLogServiceServer(r, s)
			auditv1.RegisterHistoryServiceServer(r, s)
		}))
	}
	for name, tc := range map[string]struct {
		fail  error
		moves bool
	}{
		"it can do its work":      {nil, false},
		"it stands by":            {fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "another leads"), true},
		"it does not answer":      {context.DeadlineExceeded, true},
		"its time was over first": {fault.New(callv1.Code_CODE_TIMEOUT, "the call took too long"), true},
		"its disk is full":        {fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "full", fault.WithField(reserve.Field)), false},
		"the call is refused":     {fault.New(callv1.Code_CODE_CONFLICT, "a sequence is taken"), false},
		"the caller may not ask":  {fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed), false},
	} {
		t.Run(name, func(t *testing.T) {
			any, err := rpc.DialAny(rpc.ClientConfig{Identity: kit.Identity(vault, "main"), Address: addresses[0], Server: kit.ID(audit, "main"), Deadline: 500 * time.Millisecond}, addresses[1:])
			must(t, err)
			defer any.Close()
			client := auditv1.NewLogServiceClient(any)
			first.becomes(tc.fail)
			second.becomes(nil)
			if _, err := client.GetHead(t.Context(), &auditv1.GetHeadRequest{}); (err == nil) != (tc.fail == nil) || second.count() != 0 {
				t.Fatalf("%v after %d calls of the second", err, second.count())
			}
			_, err = client.GetHead(t.Context(), &auditv1.GetHeadRequest{})
			if moved := second.count() == 1; moved != tc.moves || first.count()+second.count() != 2 || tc.moves && err != nil {
				t.Errorf("%d calls of the first, %d of the second, %v", first.count(), second.count(), err)
			}
		})
	}
	for name, addresses := range map[string][]string{"nobody is there": {nobody(t), addresses[1]}, "of three the last": {nobody(t), nobody(t), addresses[1]}} {
		any, err := rpc.DialAny(rpc.ClientConfig{Identity: kit.Identity(vault, "main"), Address: addresses[0], Server: kit.ID(audit, "main")}, addresses[1:])
		must(t, err)
		second.becomes(nil)
		for n := 1; n <= 2; n++ {
			if _, err := auditv1.NewLogServiceClient(any).GetHead(t.Context(), &auditv1.GetHeadRequest{}); err != nil || second.count() != n || !any.Spoken() {
				t.Errorf("%s: call %d: %v after %d calls", name, n, err, second.count())
			}
		}
		if err := any.Close(); err != nil {
			t.Error(err)
		}
	}
	any, err := rpc.DialAny(rpc.ClientConfig{Identity: kit.Identity(operator, "ada"), Address: addresses[0], Server: kit.ID(audit, "main")}, addresses[1:])
	must(t, err)
	defer any.Close()
	first.becomes(fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "another leads"))
	second.becomes(nil)
	for _, want := range []bool{false, true} {
		stream, err := auditv1.NewHistoryServiceClient(any).TailRecords(t.Context(), &auditv1.TailRecordsRequest{})
		must(t, err)
		if _, err := stream.Recv(); (err == nil) != want {
			t.Errorf("a stream: %v", err)
		}
	}
}

// TestCallerThatWentAway: a call whose caller went away moves nobody.
func TestCallerThatWentAway(t *testing.T) {
	kit := platformtest.New(t)
	first, second := &standby{}, &standby{}
	var addresses []string
	for _, s := range []*standby{first, second} {
		addresses = append(addresses, kit.Serve(t, audit, "main", func(r grpc.ServiceRegistrar) {
			auditv1.RegisterLogServiceServer(r, s)
			auditv1.RegisterHistoryServiceServer(r, s)
		}))
	}
	any, err := rpc.DialAny(rpc.ClientConfig{Identity: kit.Identity(operator, "ada"), Address: addresses[0], Server: kit.ID(audit, "main")}, addresses[1:])
	must(t, err)
	defer any.Close()
	log, history := auditv1.NewLogServiceClient(any), auditv1.NewHistoryServiceClient(any)
	gone, leave := context.WithCancel(t.Context())
	stream, err := history.TailRecords(gone, &auditv1.TailRecordsRequest{})
	must(t, err)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	leave()
	for err == nil {
		_, err = stream.Recv()
	}
	if _, err := log.GetHead(gone, &auditv1.GetHeadRequest{}); !fault.Is(fault.From(err), callv1.Code_CODE_UNAVAILABLE) {
		t.Errorf("whose caller went away: %v", err)
	}
	if _, err := log.GetHead(t.Context(), &auditv1.GetHeadRequest{}); err != nil || first.count() != 2 || second.count() != 0 {
		t.Errorf("%d calls of the first, %d of the second, %v", first.count(), second.count(), err)
	}
}

// TestVaultThatTookOver: of vaults the one that leads alone listens. Calls go to one that begins to, though the one before answers, and
// stay there.
func TestVaultThatTookOver(t *testing.T) {
	kit := platformtest.New(t)
	first, second := &standby{}, &standby{}
	register := func(s *standby) func(grpc.ServiceRegistrar) {
		return func(r grpc.ServiceRegistrar) { auditv1.RegisterLogServiceServer(r, s) }
	}
	addresses := []string{kit.Serve(t, vault, "main", register(first)), nobody(t)}
	any, err := rpc.DialAny(rpc.ClientConfig{Identity: kit.Identity(vault, "main"), Address: addresses[0], Server: kit.ID(vault, "main")}, addresses[1:])
	must(t, err)
	defer any.Close()
	call := func() {
		t.Helper()
		if _, err := auditv1.NewLogServiceClient(any).GetHead(t.Context(), &auditv1.GetHeadRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		call()
	}
	if first.count() != 3 {
		t.Fatalf("%d calls of the first", first.count())
	}
	server := rpc.NewServer(rpc.ServerConfig{Identity: kit.Identity(vault, "main"), Logger: platformtest.Logger()})
	register(second)(server)
	lis, err := rpc.Listen(addresses[1], false)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for began := time.Now(); second.count() == 0; call() {
		if time.Since(began) > 10*time.Second {
			t.Fatal("no call goes to the one that took over")
		}
	}
	before := first.count()
	for range 3 {
		call()
	}
	if first.count() != before || second.count() != 4 {
		t.Errorf("%d calls of the first meanwhile, %d of the second", first.count()-before, second.count())
	}
}
