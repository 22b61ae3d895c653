package trust

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/platform/logproof"

	"durward.internal/services/platform/security/ownership"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func certificate(t *testing.T, isCA bool) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: now, NotAfter: now.AddDate(1, 0, 0),
		IsCA: isCA, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func sshKey(t *testing.T) ssh.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	must(t, err)
	key, err := ssh.NewPublicKey(public)
	must(t, err)
	return key
}

// folder writes a good trust folder.
func folder(t *testing.T) (dir string, write func(name, content string)) {
	t.Helper()
	dir = t.TempDir()
	write = func(name, content string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	public, _, err := ed25519.GenerateKey(nil)
	must(t, err)
	_, verifier, err := note.GenerateKey(rand.Reader, "durward.local/audit/main")
	must(t, err)
	write(FileCA, string(certificate(t, true)))
	write(FileGrantSigners, string(FormatGrantSigners([]GrantSigner{{KID: "k1", Key: public, NotBefore: now, NotAfter: now.Add(time.Hour)}})))
	write(FileAllowedSigners, "# operators\n"+FormatSigner("ada", sshKey(t), "durward-approval")+"\n")
	write(FileLogKeys, "# audit\n"+verifier+"\n")
	write(FileRevoked, "revoked:\n  - spiffe://durward.local/gateway/old\n")
	return dir, write
}

// rsaKey is the public key of an RSA key of so many bits.
func rsaKey(t *testing.T, bits int) string {
	t.Helper()
	n := new(big.Int).SetBit(big.NewInt(1), bits-1, 1)
	key, err := ssh.NewPublicKey(&rsa.PublicKey{N: n, E: 65537})
	must(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func witnessKey(t *testing.T, name string) string {
	t.Helper()
	signer, err := logproof.NewCosigner(name, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), time.Now)
	must(t, err)
	return signer.String()
}

// TestWitnesses: the file is optional; what it says is taken over while the process runs.
func TestWitnesses(t *testing.T) {
	dir, write := folder(t)
	opened, err := Open(dir)
	must(t, err)
	defer opened.Close()
	if got := opened.Current().Witnesses; got.Quorum != 0 || len(got.Keys) != 0 {
		t.Errorf("without the file: %+v", got)
	}
	write(FileWitnesses, "quorum: 1\nrequired_within: 10m\nwitnesses: ["+witnessKey(t, "one")+"]\n")
	must(t, opened.Reload())
	if got := opened.Current().Witnesses; got.Quorum != 1 || got.Within != 10*time.Minute || len(got.Keys) != 1 || got.Keys[0].Name() != "one" {
		t.Errorf("with it: %+v", got)
	}
}

func TestReadRefuses(t *testing.T) {
	genuine := func(file string) string {
		dir, _ := folder(t)
		raw, err := os.ReadFile(filepath.Join(dir, file))
		must(t, err)
		return string(raw)
	}
	signers, key := genuine(FileGrantSigners), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshKey(t))))
	for name, tc := range map[string]struct{ file, content, why string }{
		"no authority":              {FileCA, "", "holds no certificate"},
		"a key in the bundle":       {FileCA, strings.ReplaceAll(genuine(FileCA), "CERTIFICATE", "PRIVATE KEY"), `holds a "PRIVATE KEY" block`},
		"a leaf in the bundle":      {FileCA, string(certificate(t, false)), "not an authority's"},
		"no grant signer":           {FileGrantSigners, "signers: []\n", "names no signer"},
		"unknown key in YAML":       {FileGrantSigners, signers + "extra: 1\n", `unknown key "extra"`},
		"short grant key":           {FileGrantSigners, "signers: [{kid: a, key: AAAA, not_before: 2026-01-01T00:00:00Z, not_after: 2027-01-01T00:00:00Z}]\n", "not a base64 Ed25519 public key"},
		"a grant key twice":         {FileGrantSigners, signers + strings.TrimPrefix(signers[strings.Index(signers, "signers:"):], "signers:\n"), "used twice"},
		"a grant key without name":  {FileGrantSigners, strings.Replace(signers, `"k1"`, `""`, 1), "kid is empty"},
		"a name alone":              {FileAllowedSigners, "ada\n", "one literal operator name"},
		"an empty namespace":        {FileAllowedSigners, `ada namespaces="durward-approval," ` + key + "\n", "must be a literal name"},
		"a value of half a quote":   {FileAllowedSigners, `ada valid-before="20270101Z ` + key + "\n", "readable"},
		"a time of another length":  {FileAllowedSigners, `ada valid-before="2027Z" ` + key + "\n", "is not YYYYMMDD"},
		"a day that there is not":   {FileAllowedSigners, `ada valid-before="20270230Z" ` + key + "\n", "is not YYYYMMDD"},
		"pattern as operator":       {FileAllowedSigners, "*@example.com " + key + "\n", "one literal operator name"},
		"two operators on a line":   {FileAllowedSigners, "ada,bob " + key + "\n", "one literal operator name"},
		"a signing authority":       {FileAllowedSigners, "ada cert-authority " + key + "\n", `the option "cert-authority"`},
		"a key that needs no touch": {FileAllowedSigners, "ada no-touch-required " + key + "\n", `the option "no-touch-required"`},
		"a local time":              {FileAllowedSigners, `ada valid-before="20270101" ` + key + "\n", "is not YYYYMMDD"},
		"an option twice":           {FileAllowedSigners, `ada namespaces="file",namespaces="durward-approval" ` + key + "\n", "twice"},
		"a negated namespace":       {FileAllowedSigners, `ada namespaces="!durward-approval,file" ` + key + "\n", "must be a literal name"},
		"a pattern of namespaces":   {FileAllowedSigners, `ada namespaces="durward-*" ` + key + "\n", "must be a literal name"},
		"a value without quotes":    {FileAllowedSigners, `ada namespaces=durward-approval ` + key + "\n", "must stand in double quotes"},
		"a value behind a quote":    {FileAllowedSigners, `ada namespaces="file"x ` + key + "\n", "must stand in double quotes"},
		"a value before a quote":    {FileAllowedSigners, `ada namespaces=x"file" ` + key + "\n", "must stand in double quotes"},
		"a quote in a value":        {FileAllowedSigners, `ada namespaces="fi\"le" ` + key + "\n", "must stand in double quotes"},
		"a short RSA key":           {FileAllowedSigners, "ada " + rsaKey(t, minRSA-1) + "\n", "less than 2048 bits"},
		"no key on the line":        {FileAllowedSigners, "ada ssh-ed25519 nonsense\n", "no readable public key"},
		"no log key":                {FileLogKeys, "# none\n", "names no key"},
		"a log key that is none":    {FileLogKeys, "durward.local/audit/main+00000000+AAAA\n", "not a verifier key"},
		"revoked, misspelt":         {FileRevoked, "revokd: []\n", `unknown key "revokd"`},
		"revoked, no scheme":        {FileRevoked, "revoked:\n  - durward.local/gateway/old\n", "is not an identity"},
		"revoked, another scheme":   {FileRevoked, "revoked:\n  - https://durward.local/gateway/old\n", "is not an identity"},
		"revoked, upper case":       {FileRevoked, "revoked:\n  - spiffe://Durward.local/gateway/old\n", "is not an identity"},
		"revoked, no instance":      {FileRevoked, "revoked:\n  - spiffe://durward.local/gateway\n", "is not an identity"},
		"revoked, slash at the end": {FileRevoked, "revoked:\n  - spiffe://durward.local/gateway/old/\n", "is not an identity"},
		"revoked, unknown role":     {FileRevoked, "revoked:\n  - spiffe://durward.local/gatway/old\n", "is not an identity"},
		"revoked, role's constant":  {FileRevoked, "revoked:\n  - spiffe://durward.local/GATEWAY/old\n", "is not an identity"},
		"revoked, no role":          {FileRevoked, "revoked:\n  - spiffe://durward.local/unspecified/old\n", "is not an identity"},
		"revoked, a pattern":        {FileRevoked, "revoked:\n  - spiffe://durward.local/gateway/*\n", "is not an identity"},
		"revoked, a space":          {FileRevoked, "revoked:\n  - 'spiffe://durward.local/gateway/old '\n", "is not an identity"},
		"revoked, a long instance":  {FileRevoked, "revoked:\n  - spiffe://durward.local/gateway/" + strings.Repeat("a", 64) + "\n", "is not an identity"},
		"revoked, a dot before it":  {FileRevoked, "revoked:\n  - spiffe://durward.local/gateway/-old\n", "is not an identity"},
		"revoked, one bad of two":   {FileRevoked, "revoked:\n  - spiffe://durward.local/gateway/old\n  - old\n", "revoked[1]"},
		"revoked, an empty one":     {FileRevoked, "revoked: ['']\n", "is not an identity"},
		"revoked, twice":            {FileRevoked, "revoked: []\n---\nrevoked: [spiffe://durward.local/gateway/old]\n", "a second document"},
		"revoked, after an end":     {FileRevoked, "revoked: []\n...\nrevoked: [spiffe://durward.local/gateway/old]\n", "a second document"},
		"witnesses, none":           {FileWitnesses, "quorum: 0\nwitnesses: []\n", "names no witness"},
		"witnesses, misspelt":       {FileWitnesses, "quorum: 1\nquorom: 1\nwitnesses: [" + witnessKey(t, "one") + "]\n", `unknown key "quorom"`},
		"witnesses, no quorum":      {FileWitnesses, "witnesses: [" + witnessKey(t, "one") + "]\n", "quorum"},
		"witnesses, too many":       {FileWitnesses, "quorum: 2\nwitnesses: [" + witnessKey(t, "one") + "]\n", "quorum"},
		"witnesses, one twice":      {FileWitnesses, "quorum: 2\nwitnesses: [" + witnessKey(t, "one") + ", " + witnessKey(t, "one") + "]\n", "twice"},
		"witnesses, no key":         {FileWitnesses, "quorum: 1\nwitnesses: [one]\n", "witnesses[0]"},
		"witnesses, at once":        {FileWitnesses, "quorum: 1\nrequired_within: 1s\nwitnesses: [" + witnessKey(t, "one") + "]\n", "required_within"},
		"witnesses, no duration":    {FileWitnesses, "quorum: 1\nrequired_within: soon\nwitnesses: [" + witnessKey(t, "one") + "]\n", "is not a duration"},
		"a huge file":               {FileLogKeys, genuine(FileLogKeys) + strings.Repeat("#\n", maxFile), "larger than 1 MB"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, write := folder(t)
			if _, err := Read(dir); err != nil {
				t.Fatalf("before: %v", err)
			}
			write(tc.file, tc.content)
			if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), tc.file) || !strings.Contains(err.Error(), tc.why) {
				t.Errorf("Read = %v, want an error that names %s and says %q", err, tc.file, tc.why)
			}
			if _, err := Open(dir); err == nil {
				t.Error("Open starts without roots of trust")
			}
		})
	}
	dir, _ := folder(t)
	must(t, os.Remove(filepath.Join(dir, FileAllowedSigners)))
	if _, err := Read(dir); err == nil {
		t.Error("a folder without allowed_signers is read")
	}
}

// A list of which comments alone are left revokes nobody.
func TestRevokedOfCommentsAlone(t *testing.T) {
	dir, write := folder(t)
	write(FileRevoked, "# nobody\n")
	if s, err := Read(dir); err != nil || s.Revoked("spiffe://durward.local/gateway/old") {
		t.Errorf("Read = %v", err)
	}
}

func TestReadRefusesWhatOthersMayWrite(t *testing.T) {
	for _, name := range []string{"", FileCA, FileAllowedSigners, FileGrantSigners, FileLogKeys, FileWitnesses, FileRevoked} {
		dir, write := folder(t)
		write(FileWitnesses, "quorum: 1\nwitnesses: ["+witnessKey(t, "one")+"]\n")
		if _, err := Read(dir); err != nil {
			t.Fatal(err)
		}
		must(t, os.Chmod(filepath.Join(dir, name), 0o777))
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "others may write to ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestOneFileRefusedWhatOthersMayWrite: what reads one file of the folder is as strict as what reads all.
func TestOneFileRefusedWhatOthersMayWrite(t *testing.T) {
	for name, one := range map[string]func(dir string) error{
		FileAllowedSigners: func(dir string) error { _, err := ReadAllowedSigners(dir); return err },
		FileGrantSigners:   func(dir string) error { _, err := ReadGrantSigners(dir); return err },
		FileLogKeys:        func(dir string) error { _, err := ReadLogKeys(dir); return err },
	} {
		dir, _ := folder(t)
		must(t, one(dir))
		must(t, os.Chmod(filepath.Join(dir, name), 0o777))
		if err := one(dir); err == nil || !strings.Contains(err.Error(), "others may write to ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGrantKeysHaveTheirTime(t *testing.T) {
	dir, _ := folder(t)
	s, err := Read(dir)
	must(t, err)
	for name, tc := range map[string]struct {
		kid  string
		at   time.Time
		want error
	}{
		"unknown": {"k2", now, ErrUnknownKey},
		"early":   {"k1", now.Add(-time.Second), ErrUnknownKey},
		"late":    {"k1", now.Add(time.Hour), ErrUnknownKey},
		"in time": {"k1", now, nil},
	} {
		if _, err := s.GrantKey(tc.kid, tc.at); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if ends, none := s.GrantSigner("k1").NotAfter, s.GrantSigner("k2").NotAfter; !ends.Equal(now.Add(time.Hour)) || !none.IsZero() {
		t.Errorf("k1 ends at %v, and k2, which nobody knows, at %v", ends, none)
	}
	if !s.Revoked("spiffe://durward.local/gateway/old") || s.Revoked("spiffe://durward.local/gateway/main") {
		t.Error("the revoked list is not what the file says")
	}
}

// TestSignersHaveTheirTime: a key counts from the first moment of its time to the one before its end, and for its namespaces alone.
func TestSignersHaveTheirTime(t *testing.T) {
	if _, err := ParseAllowedSigners([]byte("ada " + rsaKey(t, minRSA))); err != nil {
		t.Errorf("an RSA key that is long enough: %v", err)
	}
	key := sshKey(t)
	for options, valid := range map[string][]bool{ // a second before the day, at its begin, a second before its end, at its end
		"":                          {true, true, true, true},
		`valid-after="20261121Z" `:  {false, true, true, true},
		`valid-before="20261122Z" `: {true, true, true, false},
		`valid-after="20261121Z",valid-before="202611220000Z" `: {false, true, true, false},
		`namespaces="file" `: {false, false, false, false},
	} {
		signers, err := ParseAllowedSigners([]byte("ada " + options + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))))
		must(t, err)
		day := now.Truncate(24 * time.Hour)
		for i, at := range []time.Time{day.Add(-time.Second), day, day.Add(24*time.Hour - time.Second), day.Add(24 * time.Hour)} {
			if s, err := signers.Find(key, "durward-approval", at); (err == nil) != valid[i] || err == nil && s.Operator != "ada" || err != nil && !errors.Is(err, ErrUnknownSigner) {
				t.Errorf("%s at %v: %q, %v", options, at, s.Operator, err)
			}
		}
	}
}

func TestFolderKeepsTheLastGoodSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, write := folder(t)
		f, err := Open(dir)
		must(t, err)
		defer f.Close()
		bob := sshKey(t)
		if _, err := f.Current().AllowedSigners.Find(bob, "durward-approval", now); !errors.Is(err, ErrUnknownSigner) {
			t.Fatalf("bob before: %v", err)
		}
		write(FileAllowedSigners, "a line that is none\n")
		if err := f.Reload(); err == nil || f.Err() == nil {
			t.Fatal("a broken file is adopted")
		}
		if got := len(f.Current().AllowedSigners.All()); got != 1 {
			t.Fatalf("after a broken file: %d operators, want the 1 from before", got)
		}
		write(FileAllowedSigners, FormatSigner("bob", bob, "durward-approval")+"\n")
		time.Sleep(time.Second)
		synctest.Wait()
		if s, err := f.Current().AllowedSigners.Find(bob, "durward-approval", now); err != nil || s.Operator != "bob" || f.Err() != nil {
			t.Fatalf("after a change: operator %q, %v, Err %v", s.Operator, err, f.Err())
		}
		if _, err := f.Current().AllowedSigners.Find(bob, "file", now); !errors.Is(err, ErrUnknownSigner) {
			t.Errorf("another namespace: %v", err)
		}
	})
}

func FuzzAllowedSigners(f *testing.F) {
	f.Add("ada namespaces=\"durward-approval\" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqkGvs7w5iVwQUAGbCVXzNpZo1v9JkZc7H0Qm3mZ0bq x")
	f.Add("* ssh-ed25519 AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAllowedSigners([]byte(text))
		if err != nil {
			return
		}
		for _, s := range a.All() {
			if s.Operator == "" || strings.ContainsAny(s.Operator, "*?!, ") {
				t.Fatalf("accepted operator %q", s.Operator)
			}
		}
	})
}

// A change that the gateway's user could have made is not taken over: what was trusted before stays.
func TestWhatTheGatewayMayWriteIsNotTakenOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir, _ := folder(t)
	path := filepath.Join(dir, FileRevoked)
	must(t, os.WriteFile(path, []byte("revoked: []\n"), 0o600))
	// A group of root's own is no other user's, but the gateway may be in it.
	gateway := &ownership.Foreign{UID: 61234, GIDs: []uint32{0}}
	if _, err := OpenGuarded(dir, &ownership.Foreign{}); err == nil {
		t.Error("a folder of the gateway's own was opened")
	}
	f, err := OpenGuarded(dir, gateway)
	must(t, err)
	defer f.Close()
	before := f.Current()
	must(t, os.Chmod(path, 0o660))
	if err := f.Reload(); !errors.Is(err, ownership.ErrForeign) || f.Current() != before {
		t.Errorf("it is taken over: %v", err)
	}
	plain, err := Open(dir)
	if err != nil {
		t.Fatalf("the control: %v", err)
	}
	plain.Close()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
