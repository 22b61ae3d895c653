package platformtest

import (
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	api "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"durward.internal/services/platform/clock"
)

// WorkloadAPI is a SPIFFE Workload API, for one process: it tells every caller the same.
type WorkloadAPI struct {
	api.UnimplementedSpiffeWorkloadAPIServer
	t    testing.TB
	path string

	mu      sync.Mutex
	server  *grpc.Server
	sent    *api.X509SVIDResponse
	changed clock.Signal
}

// NewWorkloadAPI serves one that has no certificate yet.
func NewWorkloadAPI(t testing.TB) *WorkloadAPI {
	t.Helper()
	dir, err := os.MkdirTemp("", "spire") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	w := &WorkloadAPI{t: t, path: filepath.Join(dir, "api.sock")}
	t.Cleanup(func() {
		w.Stop()
		_ = os.RemoveAll(dir)
	})
	w.Start()
	return w
}

// Address is where it listens, as a configuration has it.
func (w *WorkloadAPI) Address() string { return fmt.Sprintf("unix:%s,user=%d", w.path, os.Geteuid()) }

// Start serves; Stop ends every stream.
func (w *WorkloadAPI) Start() {
	w.t.Helper()
	lis, err := net.Listen("unix", w.path)
	if err != nil {
		w.t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterSpiffeWorkloadAPIServer(server, w)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server
	go func() { _ = server.Serve(lis) }()
}

// Stop ends it, until Start.
func (w *WorkloadAPI) Stop() {
	w.mu.Lock()
	server := w.server
	w.mu.Unlock()
	server.Stop()
}

// Send has it issue id a certificate and key, both as PEM, with these roots.
func (w *WorkloadAPI) Send(id string, chain, key []byte, roots ...[]byte) {
	w.send(&api.X509SVIDResponse{Svids: []*api.X509SVID{
		{SpiffeId: "spiffe://elsewhere.example/a/workload/of/another/kind"}, // an agent knows several
		issued(id, chain, key, roots...),
	}})
}

// SendFirst has it issue what it issues, and before that another certificate: it knows its caller under two names.
func (w *WorkloadAPI) SendFirst(id string, chain, key []byte, roots ...[]byte) {
	w.mu.Lock()
	all := append([]*api.X509SVID{issued(id, chain, key, roots...)}, w.sent.GetSvids()...)
	w.mu.Unlock()
	w.send(&api.X509SVIDResponse{Svids: all})
}

func (w *WorkloadAPI) send(response *api.X509SVIDResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = response
	w.changed.Raise()
}

func issued(id string, chain, key []byte, roots ...[]byte) *api.X509SVID {
	der := func(files ...[]byte) (all []byte) {
		for _, rest := range files {
			for block := (*pem.Block)(nil); ; {
				if block, rest = pem.Decode(rest); block == nil {
					break
				}
				all = append(all, block.Bytes...)
			}
		}
		return all
	}
	return &api.X509SVID{SpiffeId: id, X509Svid: der(chain), X509SvidKey: der(key), Bundle: der(roots...)}
}

// FetchX509SVID implements the API.
func (w *WorkloadAPI) FetchX509SVID(_ *api.X509SVIDRequest, stream grpc.ServerStreamingServer[api.X509SVIDResponse]) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); len(md.Get("workload.spiffe.io")) != 1 {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		w.mu.Lock()
		sent, changed := w.sent, w.changed.Wait()
		w.mu.Unlock()
		if sent == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(sent); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}
