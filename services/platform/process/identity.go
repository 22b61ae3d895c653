package process

import (
	"context"
	"fmt"
	"log/slog"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/trust"
)

// OpenIdentity opens the trust folder and the certificate that a configuration names, and says in the log, until ctx ends,
// when a change of either could not be taken up. There is no way to start without them. The caller calls closeAll when
// nothing uses them any more.
func OpenIdentity(ctx context.Context, logger *slog.Logger, c *config.Common) (roots *trust.Folder, self *identity.Source, closeAll func(), err error) {
	roots, err = trust.Open(c.TrustDir)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("trust folder: %w", err)
	}
	self, err = identity.Open(identity.Files{Certificate: c.TLS.Certificate, Key: c.TLS.Key}, roots)
	if err != nil {
		roots.Close()
		return nil, nil, nil, err
	}
	Watch(ctx, logger, "trust folder", roots.Err)
	Watch(ctx, logger, "certificate", self.Err)
	return roots, self, roots.Close, nil
}
