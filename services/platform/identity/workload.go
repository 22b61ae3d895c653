package identity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	api "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/trust"
)

const (
	// workloadPatience is how long OpenWorkload waits for the first certificate; whoever started the process starts it again.
	workloadPatience = 20 * time.Second
	// workloadPause is between two attempts to reach the API, which is on this host.
	workloadPause = time.Second
)

// OpenWorkload is Open for a SPIFFE Workload API, such as SPIRE's agent: certificate, key and further roots of the trust domain come
// from there, and new ones until ctx ends. An agent may know one Unix user under several names: the first one of that role counts,
// ROLE_UNSPECIFIED is any. dial connects to it, and vouches for who listens: that user may issue any identity, as the
// authority behind it can. What it sends counts beside the trust folder, where revoked identities stay revoked.
//
// It speaks the API itself. go-spiffe's client would link JOSE into every process, for tokens that none of them uses.
func OpenWorkload(ctx context.Context, dial func(context.Context) (net.Conn, error), role optionsv1.Role, roots *trust.Folder) (*Source, error) {
	if roots == nil {
		return nil, errors.New("identity: no trust folder")
	}
	conn, err := grpc.NewClient("passthrough:///workload", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	s := &Source{roots: roots}
	w := &workload{source: s, role: role, first: make(chan struct{})}
	s.issued = w
	go func() {
		defer stop()
		defer conn.Close()
		for ctx.Err() == nil {
			w.failed(w.listen(ctx, api.NewSpiffeWorkloadAPIClient(conn)))
			clock.Sleep(ctx, workloadPause)
		}
	}()
	select {
	case <-w.first:
		return s, nil // listening goes on until the caller's ctx ends
	case <-ctx.Done():
	case <-time.After(workloadPatience):
	}
	defer stop()
	return nil, fmt.Errorf("the Workload API gave no certificate: %w", errors.Join(w.Reload(), ctx.Err()))
}

// workload takes up what a Workload API sends. One goroutine listens.
type workload struct {
	source *Source
	role   optionsv1.Role
	first  chan struct{} // is closed with the first certificate

	mu      sync.Mutex
	current *x509svid.SVID
	failure error
}

func (w *workload) Get() *x509svid.SVID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

func (w *workload) Reload() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

func (w *workload) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failure = err
}

func (w *workload) listen(ctx context.Context, client api.SpiffeWorkloadAPIClient) error {
	// The standard wants the header, which no request has that another program was talked into.
	stream, err := client.FetchX509SVID(metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", "true"), &api.X509SVIDRequest{})
	for err == nil {
		var sent *api.X509SVIDResponse
		if sent, err = stream.Recv(); err == nil {
			w.failed(w.take(sent.GetSvids()))
		}
	}
	return fmt.Errorf("the Workload API does not answer: %w", err)
}

// take takes up the first certificate that is one of ours and of the role, with its roots. What is refused is left whole, and the last good one stays.
func (w *workload) take(sent []*api.X509SVID) error {
	for _, one := range sent {
		if id, err := Parse(one.GetSpiffeId()); err != nil || w.role != optionsv1.Role_ROLE_UNSPECIFIED && id.Role() != w.role {
			continue
		}
		svid, err := x509svid.ParseRaw(one.GetX509Svid(), one.GetX509SvidKey())
		if err != nil {
			return fmt.Errorf("certificate of the Workload API: %w", err)
		}
		bundle, err := x509bundle.ParseRaw(svid.ID.TrustDomain(), one.GetBundle())
		if err == nil {
			err = w.source.accept(svid, authorities{w.source.roots.Current(), bundle})
		}
		if err != nil {
			return fmt.Errorf("certificate of the Workload API: %w", err)
		}
		w.source.supplied.Store(bundle)
		w.mu.Lock()
		begins := w.current == nil
		w.current = svid
		w.mu.Unlock()
		if !begins {
			return nil
		}
		defer close(w.first)
		w.source.id, err = Parse(svid.ID.String())
		return err
	}
	return fmt.Errorf("none of the Workload API's %d certificates is for a process of this kind", len(sent))
}
