package server_test

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/platformtest"
)

// committing is a store that lets something happen when entries are on disk, before the log has moved on to them.
type committing struct {
	*store.Store
	then atomic.Pointer[func()]
}

func (c *committing) Commit(ctx context.Context, b store.Batch) error {
	err := c.Store.Commit(ctx, b)
	if then := c.then.Load(); then != nil {
		(*then)()
	}
	return err
}

// TestAPageIsOfOneLog: what is committed while a page is read is not on it, wherever the store is with its reads by then.
func TestAPageIsOfOneLog(t *testing.T) {
	kit := platformtest.New(t)
	h := &house{t: t, kit: kit, audit: kit.ID(optionsv1.Role_ROLE_AUDIT, "main")}
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	c := &committing{Store: db}
	h.log, err = log.Open(t.Context(), log.Config{Store: c, Signer: kit.LogSigner, Keys: h.keys})
	must(t, err)
	t.Cleanup(h.log.Close)
	h.serv, err = server.New(server.Config{Log: h.log, Store: db, Version: "test", Identity: h.audit})
	must(t, err)
	h.addr = kit.Serve(t, optionsv1.Role_ROLE_AUDIT, "main", h.serv.Register)
	h.fill()
	newest := func(query *auditv1.SearchRecordsRequest) uint64 {
		t.Helper()
		found, err := h.history().SearchRecords(t.Context(), query)
		must(t, err)
		return found.GetEntries()[0].GetIndex()
	}
	queries := map[string]*auditv1.SearchRecordsRequest{
		"one query": {}, "one for each status": {Statuses: []auditv1.Status{auditv1.Status_STATUS_OK, auditv1.Status_STATUS_PENDING}},
	}
	then := func() {
		for name, query := range queries {
			if index := newest(query); index != 8 {
				t.Errorf("%s: record %d is on a page of 9", name, index)
			}
		}
	}
	c.then.Store(&then)
	_, err = auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_VAULT, "main")).Append(t.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{
		{Sequence: 4, Kind: auditv1.Kind_KIND_STARTED, Time: timestamppb.Now(), RequestId: "r-9", Status: auditv1.Status_STATUS_OK},
	}})
	must(t, err)
	for name, query := range queries {
		if index := newest(query); index != 9 {
			t.Errorf("%s: then the newest is %d", name, index)
		}
	}
}
