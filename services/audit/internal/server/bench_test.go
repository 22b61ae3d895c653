package server_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// BenchmarkAppendOverTLS appends 64 records of reads at a time over mutual TLS, as a sink under load does.
func BenchmarkAppendOverTLS(b *testing.B) {
	const batch = 64
	h := newHouse(b)
	client := auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_EXECUTOR, "local"))
	sequence := uint64(0)
	for b.Loop() {
		request := &auditv1.AppendRequest{}
		for range batch {
			sequence++
			request.Records = append(request.Records, &auditv1.Record{
				Sequence: sequence, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Tool: "gpu_status",
				RequestId: fmt.Sprintf("r-%024d", sequence), Body: &auditv1.Body{Principal: "client:bench", Session: "s-000000000000000000000000", Summary: "one GPU"},
			})
		}
		if _, err := client.Append(b.Context(), request); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds(), "records/s")
}
