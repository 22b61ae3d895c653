package drill

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/deploy/e2e/harness"
)

// maxNamed is how many records without a body `durward audit verify` names, one by one. It counts those beyond.
const maxNamed = 20

// withheldBodies are the records whose bodies an attacker takes away, in SQL. The last is any, again and again.
var withheldBodies = []string{
	"idx = 0", "idx = (SELECT max(idx) FROM bodies)", "idx = (SELECT max(idx) FROM bodies) / 2",
	"principal IS (SELECT principal FROM bodies WHERE principal IS NOT NULL ORDER BY idx DESC LIMIT 1)", "idx % 7 = 3", "true",
	"abs(random()) % 5 = 0",
}

// auditWithholds takes bodies away in audit.db while audit is down, so that it withholds them from then on, and out of exports.
// Its effects are withheld bodies that `durward audit verify` does not name, online and offline, or does not fail for.
func auditWithholds(w *world) (trials, effects int) {
	folder := w.t.TempDir()
	count := func(how string, withheld []int, args ...string) {
		trials += len(withheld)
		if n := w.unnamed(withheld, args...); n > 0 {
			w.t.Logf("%s: of %d bodies, %d are not named", how, len(withheld), n)
			effects += n
		}
	}
	export := func(name string) string {
		path := filepath.Join(folder, fmt.Sprintf("%s-%d.jsonl", name, trials))
		w.h.Ask("audit", "export", path) // it writes what it has, and may say what that lacks
		return path
	}
	ways := slices.Concat(withheldBodies, slices.Repeat(withheldBodies[len(withheldBodies)-1:], 39))
	rand.Shuffle(len(withheldBodies), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	for _, which := range ways[:w.tries(len(ways), 3)] {
		w.h.Process(harness.Audit).Stop()
		whole := w.copyState(harness.Audit)
		withheld := w.withhold(which)
		w.h.StartProcess(harness.Audit)
		w.awaitAll()
		count("online, "+which, withheld, "audit", "verify")
		w.claim(`idx + 1`)
		count("said to be pruned, "+which, withheld, "audit", "verify")
		w.claim(`NULL`)
		count("an export of a hostile audit, "+which, withheld, "audit", "verify", "--offline", export("withheld"))

		w.h.Process(harness.Audit).Stop()
		w.forget(harness.Audit, whole, `INSERT INTO bodies SELECT * FROM older.bodies WHERE idx NOT IN (SELECT idx FROM bodies)`)
		w.h.StartProcess(harness.Audit)
		w.awaitAll()
		if out := w.h.Ask("audit", "verify"); out.Code != 0 {
			w.t.Fatalf("with its bodies the log is not whole: %s%s", out.Stdout, out.Stderr)
		}
		path := export("whole")
		w.strip(path, withheld, "body", "salt")
		count("a stripped export, "+which, withheld, "audit", "verify", "--offline", path)
		if w.caught(effects) {
			return trials, effects
		}
		for _, part := range []string{"body", "salt"} {
			path := export(part)
			w.strip(path, withheld, part)
			trials++
			// What lacks one of the two proves nothing, so that no record is named.
			if out := w.h.Run("", "audit", "verify", "--offline", path); out.Code == 0 {
				w.t.Logf("an export without each %s, %s: it is whole", part, which)
				effects++
			}
		}
	}
	return trials, effects
}

// withhold takes bodies out of audit.db, and returns the indexes of their records.
func (w *world) withhold(which string) (withheld []int) {
	w.t.Helper()
	db, err := sql.Open("sqlite", w.stateFiles(harness.Audit)[0])
	w.must(err)
	rows, err := db.QueryContext(w.t.Context(), `DELETE FROM bodies WHERE `+which+` RETURNING idx`)
	w.must(err)
	for rows.Next() {
		var index int
		w.must(rows.Scan(&index))
		withheld = append(withheld, index)
	}
	w.must(errors.Join(rows.Err(), rows.Close(), db.Close()))
	if len(withheld) == 0 {
		w.t.Fatalf("no body is withheld: %s", which)
	}
	return withheld
}

// claim has audit say of each record without its body which record let it go, in SQL.
func (w *world) claim(by string) {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+w.stateFiles(harness.Audit)[0]+"?_pragma=busy_timeout(5000)")
	w.must(err)
	_, err = db.ExecContext(w.t.Context(), `UPDATE entries SET pruned_by = `+by+` WHERE idx NOT IN (SELECT idx FROM bodies)`)
	w.must(errors.Join(err, db.Close()))
}

// strip takes parts of records out of an exported file.
func (w *world) strip(path string, records []int, parts ...string) {
	w.t.Helper()
	raw, err := os.ReadFile(path)
	w.must(err)
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	for _, index := range records {
		line := &lines[index+1] // after the checkpoint
		var entry, record map[string]json.RawMessage
		w.must(errors.Join(json.Unmarshal(*line, &entry), json.Unmarshal(entry["record"], &record)))
		for _, part := range parts {
			delete(entry, part)
			delete(record, part)
		}
		entry["record"], err = json.Marshal(record)
		w.must(err)
		*line, err = json.Marshal(entry)
		w.must(err)
	}
	w.must(os.WriteFile(path, append(bytes.Join(lines, []byte("\n")), '\n'), 0o600))
}

// unnamed is how many of the withheld bodies a verification does not name; all, where it does not fail.
func (w *world) unnamed(withheld []int, args ...string) int {
	w.t.Helper()
	out := w.h.Ask(append(args, "--json")...)
	var report struct {
		MissingBodies int `json:"missing_bodies"`
		Missing       []struct {
			Index int `json:"index"`
		} `json:"missing"`
	}
	if err := json.NewDecoder(strings.NewReader(out.Stdout)).Decode(&report); err != nil {
		w.t.Fatalf("durward %s: %v\n%s%s", strings.Join(args, " "), err, out.Stdout, out.Stderr)
	}
	if out.Code == 0 {
		return len(withheld)
	}
	if len(withheld) > maxNamed {
		return max(len(withheld)-report.MissingBodies, 0) + maxNamed - len(report.Missing)
	}
	var named []int
	for _, m := range report.Missing {
		named = append(named, m.Index)
	}
	return len(slices.DeleteFunc(slices.Clone(withheld), func(index int) bool { return slices.Contains(named, index) }))
}
