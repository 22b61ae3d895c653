package admin

import (
	"context"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/catalog"
)

// maxLimited bounds how many services are asked about.
const maxLimited = 64

// limitedServices are the services of the catalog's own file that are expected not to reach everything. Where the file
// cannot be read there are none: doctor says so.
func (a *app) limitedServices() []string {
	path, opts, err := cli.CatalogPlace{}.Resolve(a.App, false)
	if err != nil {
		return nil
	}
	c, err := catalog.Load(path, opts)
	if err != nil {
		return nil
	}
	var ids []string
	for _, s := range c.Services {
		if (s.Network == catalog.NetworkLoopback || s.Network == catalog.NetworkNone) && len(ids) < maxLimited {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// unenforced returns those of the services of which the executor says that nothing enforces their network expectation.
func unenforced(ctx context.Context, s *cli.Session, ids []string) []string {
	var out []string
	for _, id := range ids {
		info, err := s.Executor.Tools.ServiceInfo(ctx, &executorv1.ServiceInfoRequest{ServiceId: &id})
		if err == nil && info.GetService().GetNetwork() == "not enforced" {
			out = append(out, id)
		}
	}
	return out
}
