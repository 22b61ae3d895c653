package history

import (
	"slices"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
)

func TestSignedEntries(t *testing.T) {
	entry := func(index uint64, writer string, kind auditv1.Kind) *auditv1.Entry {
		return &auditv1.Entry{Index: index, Writer: "spiffe://durward.local/" + writer, Record: &auditv1.Record{Kind: kind,
			Body: &auditv1.Body{Statement: &callv1.HumanStatement{Statement: []byte("{}")}}}}
	}
	bare := entry(4, "vault/main", auditv1.Kind_KIND_APPROVED)
	bare.Record.Body = nil
	var got []uint64
	for _, e := range Signed([]*auditv1.Entry{
		entry(0, "gateway/main", auditv1.Kind_KIND_REFUSED), entry(1, "gateway/main", auditv1.Kind_KIND_APPROVED),
		entry(2, "executor/local", auditv1.Kind_KIND_INTENT), entry(3, "executor/local", auditv1.Kind_KIND_OUTCOME), bare,
		entry(5, "vault/main", auditv1.Kind_KIND_APPROVED),
	}) {
		got = append(got, e.GetIndex())
	}
	if want := []uint64{5, 2}; !slices.Equal(got, want) {
		t.Errorf("signed: %v, want %v", got, want)
	}
}
