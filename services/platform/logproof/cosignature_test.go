package logproof_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/platform/logproof"
)

var cosignedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// cosigner is a witness with a key of its own, derived from its name.
func cosigner(t testing.TB, name string, at time.Time) *logproof.Cosigner {
	t.Helper()
	seed := seed()
	copy(seed, name)
	c, err := logproof.NewCosigner(name, ed25519.NewKeyFromSeed(seed), func() time.Time { return at })
	must(t, err)
	return c
}

// cosign adds signatures to a signed checkpoint.
func cosign(t testing.TB, f *fixture, signed []byte, by ...note.Signer) []byte {
	t.Helper()
	n, err := note.Open(signed, note.VerifierList(f.keys...))
	must(t, err)
	out, err := note.Sign(n, by...)
	must(t, err)
	return out
}

func TestParseWitnessRefuses(t *testing.T) {
	good := cosigner(t, "witness.example/one", cosignedAt).String()
	name, hash, key := strings.Split(good, "+")[0], strings.Split(good, "+")[1], strings.SplitN(good, "+", 3)[2]
	raw, err := base64.StdEncoding.DecodeString(key)
	must(t, err)
	_, logs, err := note.GenerateKey(nil, "witness.example/one")
	must(t, err)
	for _, text := range []string{
		"", "witness.example/one", name + "+" + hash, name + "+" + hash + "+", "other+" + hash + "+" + key, name + "+00000000+" + key,
		name + "+" + strings.ToUpper(hash) + "+" + key, good + "\n", " " + good, "two words+" + hash + "+" + key, logs,
		name + "+" + hash + "+" + base64.StdEncoding.EncodeToString(raw[:32]),
		// Its hash is right, and no signature could be verified with it.
		logproof.NewWitness(name, raw[1:32]).String(),
		logproof.NewWitness("two words", raw[1:]).String(),
	} {
		if w, err := logproof.ParseWitness(text); err == nil {
			t.Errorf("%q was taken for %v", text, w)
		}
	}
	if w, err := logproof.ParseWitness(good); err != nil || w.String() != good {
		t.Error(err)
	}
}

func TestNewCosignerRefuses(t *testing.T) {
	key := ed25519.NewKeyFromSeed(seed())
	for name, try := range map[string]struct {
		name string
		key  ed25519.PrivateKey
	}{
		"no name": {"", key}, "a space": {"two words", key}, "a plus": {"one+two", key}, "no key": {"one", nil}, "half a key": {"one", key[:32]},
	} {
		if _, err := logproof.NewCosigner(try.name, try.key, time.Now); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestOpenWitnessed(t *testing.T) {
	f := newFixture(t, records()...)
	one, two := cosigner(t, "witness.example/one", cosignedAt), cosigner(t, "witness.example/two", cosignedAt.Add(time.Minute))
	three, stranger := cosigner(t, "witness.example/three", cosignedAt.Add(-time.Hour)), cosigner(t, "stranger.example", cosignedAt)
	// Somebody who calls himself as a witness.
	impostor, err := logproof.NewCosigner(one.Name(), ed25519.NewKeyFromSeed(make([]byte, 32)), time.Now)
	must(t, err)
	want := logproof.Witnesses{Keys: []*logproof.Witness{one.Witness, two.Witness, three.Witness}, Quorum: 2}
	signed := f.signed(t, 5)
	later := cosignedAt.Add(time.Hour)
	spoilt := func(b []byte) []byte {
		lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		last := []byte(lines[len(lines)-1])
		at := len(last) - 10
		if last[at]++; last[at] == '{' || last[at] == '[' || last[at] == ':' {
			last[at] = 'A'
		}
		return []byte(strings.Join(append(lines[:len(lines)-1], string(last)), "\n") + "\n")
	}
	withoutLog := func() []byte {
		c := f.checkpoint(t, 5)
		b, err := note.Sign(&note.Note{Text: c.Text()}, one, two)
		must(t, err)
		return b
	}
	for _, tc := range []struct {
		name   string
		signed []byte
		want   error
	}{
		{"nobody's", signed, logproof.ErrQuorum},
		{"one of two", cosign(t, f, signed, one), logproof.ErrQuorum},
		{"one and a stranger's", cosign(t, f, signed, one, stranger), logproof.ErrQuorum},
		{"one and an impostor's", cosign(t, f, signed, two, impostor), logproof.ErrQuorum},
		{"one twice", append(cosign(t, f, signed, one), []byte(strings.SplitAfter(string(cosign(t, f, signed, one)), "\n\n")[1])...), logproof.ErrQuorum},
		{"of another checkpoint", append(cosign(t, f, signed, one), []byte("— "+lastLine(cosign(t, f, f.signed(t, 4), two)))...), logproof.ErrSignature},
		{"spoilt", spoilt(cosign(t, f, signed, one, two)), logproof.ErrSignature},
		{"without the log's own", withoutLog(), logproof.ErrSignature},
	} {
		if got, err := want.OpenWitnessed(tc.signed, f.keys, later); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, %v, want %v", tc.name, got.By, err, tc.want)
		}
	}
	got, err := want.OpenWitnessed(cosign(t, f, signed, three, stranger, two, one), f.keys, later)
	must(t, err)
	// Two are wanted, and since 03:04:05 there have been two.
	if diff := cmp.Diff([]string{"witness.example/two", "witness.example/one", "witness.example/three"}, got.By); diff != "" || !got.At.Equal(cosignedAt) || got.Checkpoint != f.checkpoint(t, 5) {
		t.Errorf("%s, at %s", diff, got.At)
	}
	if early, err := want.OpenWitnessed(cosign(t, f, signed, two, one), f.keys, cosignedAt.Add(-time.Minute)); err != nil || early.At.After(cosignedAt.Add(-time.Minute)) {
		t.Errorf("a cosignature from the future counts from %s on: %v", early.At, err)
	}
	// One that is dated later than a clock may be wrong counts for nothing, and keeps none of the others from counting.
	hasty, both := cosigner(t, three.Name(), later.Add(logproof.Skew+time.Second)), cosign(t, f, signed, one, two)
	if got, err := want.OpenWitnessed(cosign(t, f, signed, one, hasty), f.keys, later); !errors.Is(err, logproof.ErrQuorum) || !errors.Is(err, logproof.ErrFuture) {
		t.Errorf("a quorum with one from the future: %v, %v", got.By, err)
	}
	if got, err := want.OpenWitnessed(cosign(t, f, both, hasty), f.keys, later); err != nil || slices.Contains(got.By, hasty.Name()) {
		t.Errorf("a quorum beside one from the future: %v, %v", got.By, err)
	}
	for _, by := range []*logproof.Cosigner{hasty, cosigner(t, three.Name(), later.Add(logproof.Skew))} {
		line := "— " + lastLine(cosign(t, f, signed, by))
		name, err := want.By(f.checkpoint(t, 5), strings.TrimSuffix(line, "\n"), later)
		if early := by == hasty; errors.Is(err, logproof.ErrFuture) != early || (name == "") != early {
			t.Errorf("its line: %q, %v", name, err)
		}
	}
	if _, err := (logproof.Witnesses{}).OpenWitnessed(cosign(t, f, signed, one, two), f.keys, later); !errors.Is(err, logproof.ErrQuorum) {
		t.Errorf("without witnesses: %v", err)
	}
}

// TestWitnessVerify: a cosignature is a time that a clock can show and one signature, and nothing more.
func TestWitnessVerify(t *testing.T) {
	text := []byte(newFixture(t, records()...).checkpoint(t, 5).Text())
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	one, err := logproof.NewCosigner("one", key, func() time.Time { return cosignedAt })
	must(t, err)
	good, err := one.Sign(text)
	must(t, err)
	never := uint64(1) << 63
	late := append(binary.BigEndian.AppendUint64(nil, never), ed25519.Sign(key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", never, text))...)
	for name, tc := range map[string]struct {
		sig  []byte
		want bool
	}{"its own": {good, true}, "one byte more": {append(slices.Clone(good), 0), false}, "one byte less": {good[:len(good)-1], false}, "none": {nil, false}, "of no time": {late, false}} {
		if one.Verify(text, tc.sig) != tc.want {
			t.Errorf("%s: %v", name, !tc.want)
		}
	}
}

// lastLine is a note's last signature.
func lastLine(b []byte) string {
	parts := strings.Split(string(b), "— ")
	return parts[len(parts)-1]
}

func TestWitnessesValidate(t *testing.T) {
	one, two := cosigner(t, "one", cosignedAt).Witness, cosigner(t, "two", cosignedAt).Witness
	again, err := logproof.NewCosigner("again", ed25519.NewKeyFromSeed(append([]byte("one"), seed()[3:]...)), time.Now)
	must(t, err)
	crowd := logproof.Witnesses{Quorum: 1}
	for i := range 33 {
		name := fmt.Sprintf("witness-%02d", i)
		crowd.Keys = append(crowd.Keys, cosigner(t, name, cosignedAt).Witness)
	}
	for name, w := range map[string]logproof.Witnesses{
		"more than a note holds":  crowd,
		"a quorum of nobody":      {Quorum: 1},
		"no quorum":               {Keys: []*logproof.Witness{one}},
		"more than there are":     {Keys: []*logproof.Witness{one}, Quorum: 2},
		"one name twice":          {Keys: []*logproof.Witness{one, one}, Quorum: 1},
		"one key under two names": {Keys: []*logproof.Witness{one, again.Witness}, Quorum: 1},
		"at once":                 {Keys: []*logproof.Witness{one}, Quorum: 1, Within: time.Second},
		"one name, two keys":      {Keys: []*logproof.Witness{one, logproof.NewWitness("one", make([]byte, ed25519.PublicKeySize))}, Quorum: 1},
		"within two months":       {Keys: []*logproof.Witness{one}, Quorum: 1, Within: 60 * 24 * time.Hour},
		"demanded of nobody":      {Within: time.Hour},
	} {
		if w.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	crowd.Keys = crowd.Keys[:32]
	for _, w := range []logproof.Witnesses{{}, {Keys: []*logproof.Witness{one, two}, Quorum: 2, Within: time.Hour}, crowd} {
		if err := w.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestFresh(t *testing.T) {
	f := newFixture(t, records()...)
	newest := logproof.Witnessed{Checkpoint: f.checkpoint(t, 5), At: cosignedAt}
	for _, tc := range []struct {
		name   string
		within time.Duration
		newest logproof.Witnessed
		after  time.Duration
		want   string
	}{
		{"never demanded", 0, logproof.Witnessed{}, 0, ""},
		{"never cosigned", time.Hour, logproof.Witnessed{}, 0, "no quorum of witnesses has cosigned the log"},
		{"in time", time.Hour, newest, time.Hour, ""},
		{"too long ago", time.Hour, newest, time.Hour + time.Second, "cosigned the log last 1h0m1s ago"},
	} {
		err := (logproof.Witnesses{Within: tc.within}).Fresh(tc.newest, cosignedAt.Add(tc.after))
		if said := fmt.Sprint(err); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(said, tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestParseCosignerRefuses(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	good := logproof.FormatCosigner("witness.example/w1", key)
	if _, err := logproof.ParseCosigner(good, time.Now); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "\n", good[:len(good)-5], good + good, good[1:], strings.TrimPrefix(good, "PRIVATE+KEY+"), strings.Replace(good, "=", "", 1), "PRIVATE+KEY+w\n", "PRIVATE+KEY+w+\n"} {
		if c, err := logproof.ParseCosigner(text, time.Now); err == nil {
			t.Errorf("%d characters made %v", len(text), c)
		}
	}
}
