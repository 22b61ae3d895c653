package rpc

import (
	"context"
	"net"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/trust"
)

// OpenIdentity opens the identity that a program's file names: two files, or what a Workload API sends for that role until ctx ends.
func OpenIdentity(ctx context.Context, own config.OwnTLS, role optionsv1.Role, roots *trust.Folder) (*identity.Source, error) {
	if own.WorkloadAPI == "" {
		return identity.Open(identity.Files(own.TLS), roots)
	}
	return identity.OpenWorkload(ctx, func(ctx context.Context) (net.Conn, error) { return DialContext(ctx, own.WorkloadAPI) }, role, roots)
}
