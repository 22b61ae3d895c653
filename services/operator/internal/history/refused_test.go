package history

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/redaction"
)

// refuseBad makes audit refuse, for good, what begins with "bad".
func (l *log) refuseBad(code callv1.Code) {
	l.refuses = func(r *auditv1.Record) error {
		if strings.HasPrefix(r.GetBody().GetAction(), "bad") {
			return fault.New(code, "this process does not speak of a human's consent", fault.WithField("records.body"))
		}
		return nil
	}
}

// setAside are the files of refused records.
func setAside(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, refusedFolder, "*.json"))
	must(t, err)
	return files
}

// TestARefusedRecordBlocksNothing: what audit will never take is set aside and told once, wherever it stands among what waits, and
// everything else is recorded in order.
func TestARefusedRecordBlocksNothing(t *testing.T) {
	for name, c := range map[string]struct {
		code    callv1.Code
		waiting []string
		want    []string
		told    int
	}{
		"the oldest":       {callv1.Code_CODE_INVALID_ARGUMENT, []string{"bad", "one", "two"}, []string{"one", "two", "last"}, 1},
		"one in between":   {callv1.Code_CODE_INVALID_ARGUMENT, []string{"one", "two", "bad", "three"}, []string{"one", "two", "three", "last"}, 1},
		"several":          {callv1.Code_CODE_INVALID_ARGUMENT, []string{"bad 1", "one", "bad 2", "bad 3", "two"}, []string{"one", "two", "last"}, 3},
		"all":              {callv1.Code_CODE_INVALID_ARGUMENT, []string{"bad 1", "bad 2"}, []string{"last"}, 2},
		"one that is long": {callv1.Code_CODE_TOO_LARGE, []string{"one", "bad"}, []string{"one", "last"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l, dir := newLog(t), t.TempDir()
			l.down = true
			own := l.open(dir)
			for _, text := range c.waiting {
				if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_CONFIG_CHANGED, "r-1", remark(text)); sent || err != nil {
					t.Fatalf("audit is down: %v, %v", sent, err)
				}
			}
			l.down = false
			l.refuseBad(c.code)
			if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "r-2", remark("last")); !sent || err != nil {
				t.Errorf("a good record after a bad one: %v, %v", sent, err)
			}
			l.wrote(c.want...)
			if waiting, err := own.unsent(); err != nil || len(waiting) != 0 {
				t.Errorf("%d records wait still, %v", len(waiting), err)
			}
			l.must(own.Flush(context.Background()))
			if len(l.told) != c.told || len(setAside(t, dir)) != c.told {
				t.Errorf("told %v, files %v", l.told, setAside(t, dir))
			}
			l.must(own.Close())
		})
	}
}

// TestRedactsTheOperatorsRecords: what this program knows is redacted before audit sees it, and what audit alone knows when it says so.
func TestRedactsTheOperatorsRecords(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	l.refuses = func(r *auditv1.Record) error {
		if name, found := redaction.New().Find(r); found {
			t.Errorf("audit got a credential in %s", name)
		}
		for name, text := range map[string]string{"body.action": r.GetBody().GetAction(), "body.summary": r.GetBody().GetSummary()} {
			if strings.Contains(text, "zebra") {
				return redaction.Refusal(name)
			}
		}
		return nil
	}
	own := l.open(dir)
	for _, text := range []string{"one", "set password=hunter2", "a zebra", "two"} {
		if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark(text)); !sent || err != nil {
			t.Errorf("%s: %v, %v", text, sent, err)
		}
	}
	if len(setAside(t, dir)) != 0 || len(l.entries) != 4 {
		t.Errorf("%d entries, set aside: %v", len(l.entries), setAside(t, dir))
	}
	for _, e := range l.entries {
		if text := e.String(); strings.Contains(text, "hunter2") || strings.Contains(text, "zebra") {
			t.Errorf("recorded: %s", text)
		}
	}
	l.must(own.Close())
}

// TestAWriteSaysThatItWasRefused: the writer hears that audit refuses, not that audit is away, and where the record is.
func TestAWriteSaysThatItWasRefused(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	l.refuseBad(callv1.Code_CODE_INVALID_ARGUMENT)
	own := l.open(dir)
	sent, err := own.Write(context.Background(), auditv1.Kind_KIND_CONFIG_CHANGED, "r-1", remark("bad\x1b[2J thing"))
	var refusal *Refusal
	if sent || !errors.As(err, &refusal) {
		t.Fatalf("%v, %v", sent, err)
	}
	if strings.ContainsRune(err.Error(), 0x1b) || !strings.Contains(err.Error(), "does not speak of a human's consent") {
		t.Errorf("%q", err)
	}
	kept, err := os.ReadFile(refusal.File)
	if err != nil || !strings.Contains(string(kept), "CONFIG_CHANGED") || !strings.Contains(string(kept), `"field": "records.body"`) {
		t.Errorf("kept %s, %v", kept, err)
	}
	if len(l.told) != 0 {
		t.Errorf("told twice: %v", l.told)
	}
	l.must(own.Close())
}

// TestRefusedAndCutOff: audit goes away in the middle. Nothing is lost and nothing is written twice.
func TestRefusedAndCutOff(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	l.down = true
	own := l.open(dir)
	for _, text := range []string{"one", "bad", "two", "three"} {
		if _, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark(text)); err != nil {
			t.Fatal(err)
		}
	}
	l.down = false
	l.refuseBad(callv1.Code_CODE_INVALID_ARGUMENT)
	judge := l.refuses
	l.refuses = func(r *auditv1.Record) error {
		if err := judge(r); err != nil {
			return err
		}
		if len(l.entries) == 1 {
			return errors.New("down") // after the first
		}
		return nil
	}
	l.must(own.Flush(context.Background()))
	l.wrote("one")
	l.refuses = judge
	l.must(own.Flush(context.Background()))
	l.wrote("one", "two", "three")
	if diff := cmp.Diff([]string{"bad: this process does not speak of a human's consent"}, l.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	l.must(own.Close())
}

// TestNothingIsLostThatCannotBeSetAside: without a place for it a refused record waits on, and blocks nothing.
func TestNothingIsLostThatCannotBeSetAside(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	l.must(os.WriteFile(filepath.Join(dir, refusedFolder), nil, 0o600))
	l.refuseBad(callv1.Code_CODE_INVALID_ARGUMENT)
	own := l.open(dir)
	if sent, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("bad")); sent || err == nil || !strings.Contains(err.Error(), "cannot be set aside") {
		t.Fatalf("%v, %v", sent, err)
	}
	if _, err := own.Write(context.Background(), auditv1.Kind_KIND_NOTE, "", remark("one")); err == nil {
		t.Error("nothing was said of the one that waits")
	}
	l.wrote("one")
	l.must(os.Remove(filepath.Join(dir, refusedFolder)))
	l.must(own.Flush(context.Background()))
	if len(setAside(t, dir)) != 1 || len(l.told) != 1 {
		t.Errorf("files %v, told %v", setAside(t, dir), l.told)
	}
	l.must(own.Close())
}
