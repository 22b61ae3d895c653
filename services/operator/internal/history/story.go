package history

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"golang.org/x/mod/sumdb/note"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/platform/logproof"
)

// Pages searches, page by page and newest first, until each returns false or an error, or there are no older ones. each is told below which
// index older ones may be, 0 where there are none; it may change q's limit for the next page. Pages that lead back end the search.
func Pages(ctx context.Context, log auditv1.HistoryServiceClient, q *auditv1.SearchRecordsRequest, each func(page []*auditv1.Entry, below uint64) (bool, error)) error {
	for {
		found, err := log.SearchRecords(ctx, q)
		if err != nil {
			return err
		}
		below := found.GetNextBefore()
		if q.GetBefore() > 0 && below >= q.GetBefore() {
			below = 0
		}
		if more, err := each(found.GetEntries(), below); !more || err != nil || below == 0 {
			return err
		}
		q.Before = below
	}
}

// Story returns every record of a request or operation, oldest first. A request leads to its operations, and an operation
// to everything under its id.
func Story(ctx context.Context, log auditv1.HistoryServiceClient, id string) ([]*auditv1.Entry, error) {
	entries := map[uint64]*auditv1.Entry{}
	search := func(q *auditv1.SearchRecordsRequest) error {
		q.Limit = 1000
		return Pages(ctx, log, q, func(page []*auditv1.Entry, _ uint64) (bool, error) {
			for _, e := range page {
				if r := e.GetRecord(); cmp.Or(q.GetOperationId(), r.GetOperationId()) != r.GetOperationId() || cmp.Or(q.GetRequestId(), r.GetRequestId()) != r.GetRequestId() {
					return false, fmt.Errorf("audit answered with record %d, which is of another story", e.GetIndex())
				}
				entries[e.GetIndex()] = e
			}
			return true, nil
		})
	}
	if approval.IsOperationID(id) {
		if err := search(&auditv1.SearchRecordsRequest{OperationId: id}); err != nil {
			return nil, err
		}
	} else {
		if err := search(&auditv1.SearchRecordsRequest{RequestId: id}); err != nil {
			return nil, err
		}
		operations := map[string]bool{}
		for _, e := range entries {
			if op := e.GetRecord().GetOperationId(); op != "" {
				operations[op] = true
			}
		}
		for op := range operations {
			if err := search(&auditv1.SearchRecordsRequest{OperationId: op}); err != nil {
				return nil, err
			}
		}
	}
	out := slices.Collect(maps.Values(entries))
	slices.SortFunc(out, func(a, b *auditv1.Entry) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	return out, nil
}

// Signed returns those of a story's entries that carry a human's statement: the vault's approvals first, which are
// where a statement enters the story, and then the others in their order.
func Signed(entries []*auditv1.Entry) []*auditv1.Entry {
	var approvals, others []*auditv1.Entry
	for _, e := range entries {
		switch {
		case Evidence(e) == nil:
		case e.GetRecord().GetKind() == auditv1.Kind_KIND_APPROVED:
			approvals = append(approvals, e)
		default:
			others = append(others, e)
		}
	}
	return append(approvals, others...)
}

// Record returns one record with its receipt, and the checkpoint of the log that it is in. Both are proved: errors say that the log
// does not prove itself, or are audit's.
func Record(ctx context.Context, log auditv1.HistoryServiceClient, index uint64, keys []note.Verifier) (*auditv1.GetRecordResponse, logproof.Checkpoint, error) {
	var none logproof.Checkpoint
	response, err := log.GetRecord(ctx, &auditv1.GetRecordRequest{Index: index})
	if err != nil {
		return nil, none, err
	}
	entry, receipt := response.GetEntry(), response.GetReceipt()
	if entry.GetIndex() != index {
		return nil, none, logproof.ErrInclusion
	}
	if err := logproof.VerifyEntry(entry); err != nil {
		return nil, none, fmt.Errorf("%w: %w", logproof.ErrEntry, err)
	}
	at, err := logproof.VerifyReceipt(receipt, keys)
	if err != nil {
		return nil, none, fmt.Errorf("%w: %w", logproof.ErrInclusion, err)
	}
	if receipt.GetIndex() != index || string(receipt.GetLeafHash()) != string(entry.GetLeafHash()) {
		return nil, none, logproof.ErrInclusion
	}
	return response, at, nil
}

// ProveStory proves that each record of a story is in the log, as Record does, and says there what it says here. That none was left out only
// the whole log proves.
func ProveStory(ctx context.Context, log auditv1.HistoryServiceClient, story []*auditv1.Entry, keys []note.Verifier) error {
	for _, e := range story {
		response, _, err := Record(ctx, log, e.GetIndex(), keys)
		if err != nil {
			return err
		}
		if err := logproof.VerifyEntry(e); err != nil {
			return fmt.Errorf("%w: %w", logproof.ErrEntry, err)
		}
		if string(e.GetLeafHash()) != string(response.GetEntry().GetLeafHash()) {
			return fmt.Errorf("%w: record %d is another one there", logproof.ErrInclusion, e.GetIndex())
		}
	}
	return nil
}

// Export writes a whole log to out, and proves it on the way: as jsonl, which VerifyFile reads, as json or as csv.
func (l *Log) Export(stream exporter, out io.Writer, format string) (report Report, err error) {
	w := bufio.NewWriter(out)
	form, known := formats[format]
	if !known {
		return Report{}, fmt.Errorf("a log is not exported as %q", format)
	}
	file, v := form(w), l.Verifier()
	err = Each(stream, func(checkpoint []byte, _ [][]byte) error {
		return errors.Join(v.Head(checkpoint), file.head(checkpoint))
	}, func(c logproof.Checked) error {
		return errors.Join(v.Add(c), file.entry(c.Entry()))
	})
	if err == nil {
		report, err = v.Finish()
	}
	if err == nil {
		err = file.end() // what is not proved is left without its end
	}
	return report, errors.Join(err, w.Flush())
}
