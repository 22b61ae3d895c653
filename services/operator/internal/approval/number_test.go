package approval

import (
	"durward.internal/services/platform/opnumber"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%032x", i*7919+1)
	}
	return out
}

func TestFindRejects(t *testing.T) {
	known := ids(3)
	for _, number := range []string{"", "K", "K7F", "ZZZZZ", "\u202eAAAA", known[0] + "0", strings.Repeat("0", 40)} {
		if id, err := Find(number, known); !errors.Is(err, ErrNoSuchNumber) {
			t.Errorf("Find(%q) = %q, %v; want ErrNoSuchNumber", number, id, err)
		}
	}
}

func TestNumbersFindTheirOwnOperation(t *testing.T) {
	// Enough of them that four characters cannot keep them apart (birthday bound of 2^20 is about a thousand).
	known := ids(3000)
	longer := 0
	seen := map[string]bool{}
	for id, number := range Numbers(known) {
		if strings.ContainsAny(number, "ILOU") {
			t.Fatalf("%s holds a letter that people misread", number)
		}
		if seen[number] {
			t.Fatalf("%s was given twice", number)
		}
		seen[number] = true
		if len(number) > 4 {
			longer++
		}
		if len(number) == 4 && len(seen)%50 != 0 {
			continue
		}
		got, err := Find(strings.ToLower(number), known)
		if err != nil || got != id {
			t.Fatalf("Find(%q) = %q, %v; want %q", number, got, err, id)
		}
	}
	if longer == 0 {
		t.Error("3000 operations all fitted into four characters: nothing was tested")
	}
}

func TestFindAmbiguous(t *testing.T) {
	known := ids(3000)
	for id, number := range Numbers(known) {
		if len(number) == 4 {
			continue
		}
		_, err := Find(number[:4], known)
		var ambiguous *AmbiguousError
		if !errors.As(err, &ambiguous) || len(ambiguous.Candidates) < 2 {
			t.Fatalf("Find(%q) of %s = %v; want an AmbiguousError", number[:4], id, err)
		}
		for _, c := range ambiguous.Candidates {
			if _, err := Find(c, known); err != nil {
				t.Errorf("candidate %s does not name one operation: %v", c, err)
			}
		}
		return
	}
	t.Fatal("no ambiguous number among 3000")
}

func TestNumberIsStable(t *testing.T) {
	// People write these numbers down; a change of the derivation would be seen here.
	id := "0123456789abcdef0123456789abcdef"
	if got := Numbers([]string{id})[id]; len(got) != 4 || got != opnumber.Of(id)[:4] {
		t.Errorf("number of %s = %s", id, got)
	}
	if a, b := opnumber.Of(id), opnumber.Of(strings.Replace(id, "0", "1", 1)); a == b || len(a) != opnumber.Full {
		t.Errorf("numbers %s and %s", a, b)
	}
}

func TestFindByIDPrefix(t *testing.T) {
	a, b := "aaaa1111111111111111111111111111", "bbbb1111111111111111111111111111"
	if got, err := Find("aaaa1111", []string{a, b}); err != nil || got != a {
		t.Errorf("Find by id prefix = %q, %v", got, err)
	}
	if got, err := Find(b, []string{a, b}); err != nil || got != b {
		t.Errorf("Find by id = %q, %v", got, err)
	}
}

// A displayed number names the operation that it stands beside, and no other whose id happens to begin so: not while that one waits, and not
// once it does no more.
func TestANumberIsNoBeginningOfAnotherID(t *testing.T) {
	for _, id := range ids(3000) {
		number := Numbers([]string{id})[id]
		if strings.Trim(number, "0123456789ABCDEF") != "" {
			continue // no id begins so
		}
		other := strings.ToLower(number) + id[len(number):]
		if got, err := Find(number, []string{other, id}); err != nil || got != id {
			t.Errorf("Find(%q) = %q, %v; want %q", number, got, err, id)
		}
		if got, err := Find(number, []string{other}); !errors.Is(err, ErrNoSuchNumber) {
			t.Errorf("Find(%q), which waits no more, = %q, %v", number, got, err)
		}
		return
	}
	t.Fatal("no number of 3000 could begin an id")
}
