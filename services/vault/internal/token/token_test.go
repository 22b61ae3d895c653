package token

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/outside"
	"durward.internal/services/platform/reference"
)

// references is what a reference looks like, here.
var references = regexp.MustCompile(`\[\[(?:SECRET|PII):[A-Z0-9_]{1,64}:tkn_[a-z2-7]{26}\]\]`)

// parts that no scanner of this repository should take for credentials are put together here.
func join(parts ...string) string { return strings.Join(parts, "") }

var (
	openAI  = join("sk-", "proj-Zk3v9Qw8Rt5Yu2Io7Pa4")
	hugging = join("hf_", "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH")
	aws     = join("AKIA", "Z7QXW3RTYP5LMN2K")
	pem     = join("-----BEGIN RSA PRIVATE", " KEY-----\nMIIEpAIBAAKCAQEA0123456789abcdefghij\nZm9vYmFyYmF6cXV4\n-----END RSA PRIVATE", " KEY-----")
)

// keyLine is a line of a key's, and keyBody three of them and a short one.
var keyLine = join("MIIEpAIBAAKCAQEA0123456789abcdefghij", "ABCDEFGHIJKLMNOPQRSTUVWXYZab")

func keyBody(end string) string {
	return "x" + end + keyLine + end + "b" + keyLine[1:] + end + "c" + keyLine[1:] + end + "Zm9vYmFy" + end + "ready"
}

func tokenise(t testing.TB, b *Values, session string, texts ...string) []string {
	t.Helper()
	out, err := b.Tokenise(t.Context(), session, OriginSink, texts)
	must(t, err)
	return out.Texts
}

func TestSecretsInLogs(t *testing.T) {
	for name, c := range map[string]struct{ text, secret string }{
		"vLLM's arguments":       {"non-default args: {'api_key': ['" + openAI + "'], 'port': 8000}", openAI},
		"an option":              {"exec llama-server --api-key hunter2-plain --port 8080", "hunter2-plain"},
		"an option with =":       {"vllm serve --api-key=hunter2 --port 8000", "hunter2"},
		"a short password":       {"login failed, password=hunter2, retrying", "hunter2"},
		"a quoted password":      {`{"password": "correct horse battery"}`, "correct horse battery"},
		"an escaped JSON":        {`msg="{\"client_secret\":\"s3cr3t-value\"}"`, "s3cr3t-value"},
		"YAML":                   {"db_passwd: tr0ub4dor", "tr0ub4dor"},
		"a sentence":             {"the admin password is Tr0ub4dor, change it", "Tr0ub4dor"},
		"a shell variable":       {"export HF_TOKEN=" + hugging, hugging},
		"bare, with punctuation": {"downloaded with (" + hugging + "), thanks", hugging},
		"a URL":                  {"connecting to postgres://svc:p4ss/w0rd@db:5432/x", "p4ss/w0rd"},
		"a URL behind a port":    {"ETCD=http://a:2379/x,https://svc:p4ss@db:2379", "p4ss"},
		"a header":               {"> Authorization: Bearer abc.def-ghi0", "abc.def-ghi0"},
		"basic":                  {"proxy says Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"},
		"a cookie":               {"Set-Cookie: sid=8s7df6; Path=/", "8s7df6"},
		"AWS":                    {"using " + aws + " in eu-west-1.", aws},
		"a key":                  {"loaded\n" + pem + "\nready", "MIIEpAIBAAKCAQEA"},
		"a key's end":            {"Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4\nZm9v\n-----END PRIVATE " + "KEY-----\nready", "Zm9vYmFyYmF6cXV4"},
		"a key's beginning":      {"x\n-----BEGIN PRIVATE " + "KEY-----\nZm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4\nZm9vYmFy", "Zm9vYmFy"},
		"DB_PASS":                {"DB_PASS=hunter2 started", "hunter2"},
		"SMTP_PASS":              {"SMTP_PASS: hunter2", "hunter2"},
		"camel case":             {`dbPass: "hunter2"`, "hunter2"},
		"PASSWORDS":              {"PASSWORDS=hunter2", "hunter2"},
		"no sign":                {"login with password hunter2x9 failed", "hunter2x9"},
		"no sign, quoted":        {"password 'Hunter2hunter' is wrong", "Hunter2hunter"},
		"an arrow":               {"password -> hunter2", "hunter2"},
		"a Python 2 string":      {`{'password': u'correct horse'}`, "correct horse"},
		"bytes":                  {`{'password': b'correct horse'}`, "correct horse"},
		"XML":                    {"<db><password>hunter2</password></db>", "hunter2"},
		"XML with attributes":    {`<api-key type="x">hunter2-abc</api-key>`, "hunter2-abc"},
		"a signed URL":           {"GET https://x.blob/y?se=2026&sig=hA5h%2Bq2w&sp=r", "hA5h%2Bq2w"},
		"an encoded sign":        {"callback?token%3Dhunter2abc", "hunter2abc"},
		"a Google key, cut":      {"using AIzaSyA1b2C3d4E5", "SyA1b2C3d4E5"},
		"on the next line":       {"password:\n  hunter2\nready", "hunter2"},
		"a year in it":           {"DB_PASSWORD=2024Summer", "2024Summer"},
		"digits, then letters":   {"password=1234abcd", "1234abcd"},
		"many digits":            {"API_TOKEN=98765432109876", "98765432109876"},
		"zeros":                  {"api_key = 00112233", "00112233"},
		"an @ in a URL":          {"amqp://u:p@ss1word@h/v", "@ss1word"},
		"a wrapped string":       {"Settings(api_key=SecretStr('abcd-efgh'))", "abcd-efgh"},
		"an object":              {`{"token":{"value":"abcd-efgh"}}`, "abcd-efgh"},
		"an escaped quote":       {`"password": "ab\"cdefgh"`, "cdefgh"},
		"an environment":         {`os.environ["API_KEY"] = "abcd-efgh"`, "abcd-efgh"},
		"a long option":          {`args: ["--api-key", "abcd-efgh"]`, "abcd-efgh"},
		"the middle of a key":    {keyBody("\n"), keyLine},
		"with what logs put":     {keyBody("\n2026-11-22T01:00:00 app[1]: "), keyLine},
		"a key in a journal":     {"x " + strings.ReplaceAll(pem, "\n", " ⏎ "), "MIIEpAIBAAKCAQEA"},
		"its end in a journal":   {"Zm9vYmFyYmF6cXV4Zm9v ⏎ Zm9v ⏎ -----END PRIVATE " + "KEY----- ⏎ ready", "Zm9vYmFyYmF6cXV4Zm9v"},
		"its beginning, too":     {"-----BEGIN PRIVATE " + "KEY----- ⏎ Zm9vYmFyYmF6cXV4Zm9v ⏎ Zm9v", "Zm9vYmFyYmF6cXV4Zm9v"},
		"an encrypted key":       {"-----BEGIN RSA PRIVATE " + "KEY-----\nProc-Type: 4,ENCRYPTED\n\n" + keyBody("\n"), keyLine},
		"a member of its own":    {`{"name":"DB_PASSWORD","value":"hunter2"}`, "hunter2"},
		"in capitals":            {`[{"Key": "API_KEY", "Value": "hunter2"}]`, "hunter2"},
		"of an escaped text":     {`"{\"name\":\"HF_TOKEN\",\"value\":\"hunter2\"}"`, "hunter2"},
		"of a pod":               {"env:\n- name: DB_PASSWORD\n  value: hunter2\n", "hunter2"},
		"of a bean":              {`<property name="password" value="hunter2"/>`, "hunter2"},
		"a block of YAML":        {"password: |\n  hunter2\nready: true", "hunter2"},
		"a folded block":         {"password: >-\r\n  hunter2\r\n", "hunter2"},
		"an escaped object":      {`{\"token\":{\"of\":\"abcd-efgh\"}}`, "abcd-efgh"},
		"a hash in shadow":       {"root:$6$" + "rounds=5000$saltsalt$" + strings.Repeat("aB1.", 21) + "ab:19000:0:99999:7:::", "aB1.aB1."},
		"bcrypt":                 {"ada:$2y$" + "05$" + strings.Repeat("aB1.", 13) + "a", "aB1.aB1."},
		"Argon2":                 {"hash $argon2id$" + "v=19$m=65536,t=3,p=4$c2FsdHNhbHQ$" + strings.Repeat("aB1+", 10), "aB1+aB1+"},
		"SQL":                    {"CREATE USER ada IDENTIFIED BY 'hunter2'", "hunter2"},
		"redis":                  {"requirepass hunter2", "hunter2"},
		"sshpass":                {"sshpass -p hunter2 ssh host", "hunter2"},
		"colours in JSON":        {`{"log":"\u001b[36mpassword\u001b[0m=\u001b[35mhunter2\u001b[0m"}`, "hunter2"},
		"parted in JSON":         {`{"log":"key hf_abcdefghijkl` + `\u200bMNOPqrstuvwx0123"}`, "MNOPqrst"},
		"a key by \\u000a":       {`"` + strings.ReplaceAll(pem, "\n", `\u000a`) + `"`, "MIIEpAIBAAKCAQEA"},
		"headers as JSON":        {`{"Cookie":["sid=8s7df6"]}`, "8s7df6"},
		"a key in one line":      {`key "` + strings.ReplaceAll(pem, "\n", `\n`) + `"`, "MIIEpAIBAAKCAQEA"},
	} {
		t.Run(name, func(t *testing.T) {
			got := tokenise(t, New(Config{}), "s", c.text)[0]
			if strings.Contains(got, c.secret) || !references.MatchString(got) {
				t.Errorf("%q became %q", c.text, got)
			}
		})
	}
}

func TestOrdinaryLogsStay(t *testing.T) {
	for _, text := range []string{
		"", "x", "INFO 11-22 01:00:00 [loader.py:12] Loading weights took 12.34 seconds",
		"special tokens: bos_token='<s>', eos_token='<|im_end|>', pad_token: 151643",
		"Avg prompt throughput: 12.1 tokens/s, Avg generation throughput: 33.0 tokens/s, GPU KV cache usage: 3.2%",
		"llama_model_loader: - kv   5: tokenizer.ggml.bos_token_id u32 = 128000",
		"time per output token: 12.3ms, max_tokens: 4096, token: 128", "GET /v1/models HTTP/1.1 200 OK from 127.0.0.1:51234",
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
		"password: None, api_key=null, token is invalid", "basic authentication is disabled; bearer of bad news",
		"Model: meta-llama/Llama-3.3-70B-Instruct-AWQ at revision 1d1a2b3", "OSError: [Errno 98] Address already in use",
		"sha256:" + strings.Repeat("0123456789abcdef", 4) + "\nsha256:" + strings.Repeat("fedcba9876543210", 4),
		"forward_pass=12.3ms, compass: north, bypass=on, num_tokens=123456789, tokens: 4096, 12 tests pass 3 fail", "Enter password:\nINFO ready to serve",
		strings.Repeat("=", 70) + "\n" + strings.Repeat("=", 70), "the password 12 times", "GET /v1/models?limit=20&after=abcdefgh",
		"http://localhost:4873/@types/node", "POST http://10.0.0.7:8080/users?id=ada@x",
		"PWD=/opt/app OLDPWD=/root", "price: $1$ and $5$ or $6$/month", "unexpected token value: abcd", `{"authorization":null,"cookie":true,"x":"y"}`, `{"args":["--password="],"retry":true}`, `{"url":["/?token="]},{"next":null}`,
		"http://127.0.0.1:8000/v1/models", "INFO:     Started server process [12345]",
	} {
		if got := tokenise(t, New(Config{}), "s", text)[0]; got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestWhatIsHeldIsFoundAnywhere(t *testing.T) {
	b := New(Config{})
	got := tokenise(t, b, "s", "retry with s3cr3t-value", "client_secret=s3cr3t-value")
	ref := references.FindString(got[1])
	if want := []string{"retry with " + ref, "client_secret=" + ref}; !cmp.Equal(want, got) {
		t.Fatalf("got %q", got)
	}
	if later := tokenise(t, b, "s", "<s3cr3t-value>")[0]; later != "<"+ref+">" {
		t.Errorf("later it is %q", later)
	}
	if again := tokenise(t, b, "s", got...); !cmp.Equal(got, again) {
		t.Errorf("its own references became %q", again)
	}
	// Another session, or what the agent itself sent, says nothing about what this one holds.
	if other := tokenise(t, b, "other", "s3cr3t-value")[0]; other != "s3cr3t-value" {
		t.Errorf("another session's text became %q", other)
	}
	said, err := b.Tokenise(t.Context(), "s", OriginAgent, []string{"s3cr3t-value", "client_secret=s3cr3t-value"})
	agent := said.Texts
	if err != nil || agent[0] != strings.TrimPrefix(agent[1], "client_secret=") || references.FindString(agent[1]) == ref {
		t.Errorf("the agent's own are %q, %v", agent, err)
	}
	b.Forget(t.Context(), func(session string) bool { return session == "other" })
	if n := len(b.sessions); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if forgotten := tokenise(t, b, "s", "s3cr3t-value")[0]; forgotten != "s3cr3t-value" {
		t.Errorf("after its end the session holds %q", forgotten)
	}
}

func TestAReferenceIsNobodyElses(t *testing.T) {
	b := New(Config{})
	ref := references.FindString(tokenise(t, b, "s", "password=hunter2")[0])
	for _, text := range []string{ref, "[[SECRET:SETTING:aaaaaaaaaaaaaaaa]]", "[[ pii : x", "[[PII:EMAIL:aaaaaaaaaaaaaaaa]]", `{"$pii_ref":"a"}`} {
		got := tokenise(t, b, "other", text)[0]
		if references.MatchString(got) || strings.Contains(got, "$pii_ref") || got == text {
			t.Errorf("%q became %q", text, got)
		}
		if again := tokenise(t, b, "other", got)[0]; again != got {
			t.Errorf("and then %q", again)
		}
	}
	if other := tokenise(t, New(Config{}), "s", "password=hunter2")[0]; strings.HasSuffix(other, ref) {
		t.Error("another vault makes the same reference")
	}
}

// A page of a log ends in the middle of a key; what lies around it is asked about with it.
func TestWhatIsSpreadOverLinesIsFoundInParts(t *testing.T) {
	key := join("-----BEGIN PRIVATE", " KEY-----\n") + "ab12cd34ef56\ngh78ij90kl12mn34\nop56qr78\n" + join("-----END PRIVATE", " KEY-----")
	around := "started\n" + key + "\nready"
	for _, origin := range []Origin{OriginSink, OriginAgent} {
		for _, part := range []string{"ab12cd34ef56", "gh78ij90kl12mn34\nop56qr78", "op56qr78"} {
			result, err := New(Config{}).Tokenise(t.Context(), "s", origin, []string{part, around})
			got := result.Texts
			if err != nil || strings.ContainsAny(references.ReplaceAllString(got[0], ""), "0123456789") {
				t.Errorf("%s: %q became %q, %v", origin, part, got[0], err)
			}
		}
	}
}

// What an agent sends takes no room from what services write, and no session's room is another's.
func TestRoom(t *testing.T) {
	b := New(Config{})
	for i := range 4 * MaxValues {
		if _, err := b.Tokenise(t.Context(), "s", OriginAgent, []string{fmt.Sprintf("password=%06dxyz", i)}); err != nil {
			t.Fatal(err)
		}
	}
	got := tokenise(t, b, "s", "password=s3cr3t-value-1")
	if later := tokenise(t, b, "s", "with s3cr3t-value-1")[0]; later != "with "+strings.TrimPrefix(got[0], "password=") {
		t.Errorf("after the agent's own words: %q", later)
	}
	for i := range 200 {
		tokenise(t, b, "long", fmt.Sprintf("password=%06d%s", i, strings.Repeat("x", 3000)))
		tokenise(t, b, "longer", fmt.Sprintf("password=%06d%s", i, strings.Repeat("x", maxValue)))
	}
	if n := b.sessions["long"].room[OriginSink].bytes; n > maxHeld || n < maxHeld-4000 || b.sessions["longer"].values.count != 0 {
		t.Errorf("%d bytes are held", n)
	}
	b.Forget(t.Context(), func(string) bool { return false })
	if n := b.total.Load(); n != 0 {
		t.Errorf("%d bytes are counted after the end", n)
	}
}

// Where a text is longer than what is looked at at once, nothing is lost at the seams.
func TestSeams(t *testing.T) {
	const step, overlap = 8 << 10, 4 << 10 // package secret's
	for at := step - 300; at < step+overlap+300; at += 97 {
		for _, pad := range []string{"ab cd\n", "é", "0"} {
			text := strings.Repeat(pad, at/len(pad)+1)[:at]
			text = strings.ToValidUTF8(text, "") + " " + aws + " " + strings.Repeat(pad, 3000)
			if got := tokenise(t, New(Config{}), "s", text)[0]; strings.Contains(got, aws) || !utf8.ValidString(got) {
				t.Fatalf("at %d between %q it is lost", at, pad)
			}
		}
	}
	long := "nvapi-" + strings.Repeat("a1B2c3D4", 4000)
	if got := tokenise(t, New(Config{}), "s", "x "+long+"\nready")[0]; strings.Contains(got, "a1B2") || !strings.HasSuffix(got, "\nready") {
		t.Errorf("of a long one %d bytes are left", len(got))
	}
}

// TestLongTexts: a sink's text is looked through whole, however long it is: a value is found wherever it stands, in words, in JSON without a
// space, and where a stored credential that was released is printed.
func TestLongTexts(t *testing.T) {
	const iban, stored = "DE89 3704 0044 0532 0130 00", "a-stored-credential-0123456789"
	v := personal(t)
	v.Release([]byte(stored))
	for name, c := range map[string]struct{ before, value, after string }{
		"grouped digits": {"x", " " + iban, " y"},
		"JSON":           {`{"a":1},`, `{"iban":"` + strings.ReplaceAll(iban, " ", "") + `"}`, `,{"b":2}`},
		"a card":         {"x", ", card " + card, " y"},
		"a credential":   {"x", `"` + stored + `"`, "y"},
	} {
		for at := 256<<10 - len(c.value) + 1; at < 256<<10; at += 5 {
			before := strings.Repeat(c.before, at/len(c.before)+1)[:at]
			m := &auditv1.Body{Summary: before + c.value + strings.Repeat(c.after, 100)}
			found := outside.Find(m.ProtoReflect())
			for batch := found.Take(nil); len(batch) > 0; batch = found.Take(nil) {
				var texts []string
				for _, one := range batch {
					texts = append(texts, one.Text)
				}
				for i, answer := range tokenise(t, v, "s", texts...) {
					batch[i].Set(answer)
				}
			}
			if strings.Contains(m.GetSummary(), c.value) || strings.Count(m.GetSummary(), "[[") != 1 {
				t.Errorf("%s at %d leaves", name, at)
			}
		}
	}
}

func TestBounds(t *testing.T) {
	b := New(Config{})
	var texts []string
	for i := range 3 * MaxValues {
		texts = append(texts, fmt.Sprintf("password=%06dxyz%06d", i, i))
	}
	for i, got := range tokenise(t, b, "s", texts...) {
		if references.MatchString(got) != (i < MaxValues) || strings.Contains(references.ReplaceAllString(got, ""), "xyz") || i >= MaxValues && got != "password="+redactedSecret {
			t.Fatalf("%d: %q", i, got)
		}
	}
	if n := b.sessions["s"].values.count; n != MaxValues {
		t.Errorf("%d values are held", n)
	}
	for i := range 100 {
		tokenise(t, b, "same", fmt.Sprintf("password=abcdefg1%d", i))
	}
	if n := b.sessions["same"].values.count; n != maxBucket {
		t.Errorf("%d values that begin alike are held", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if out, err := b.Tokenise(ctx, "s", OriginSink, []string{"password=hunter2"}); !errors.Is(err, context.Canceled) || out.Texts != nil {
		t.Errorf("%q, %v after the end", out.Texts, err)
	}
	// A common word is replaced where it is a password, and nowhere else.
	if got := tokenise(t, b, "w", "password=elephants", "elephants")[1]; got != "elephants" {
		t.Errorf("a word became %q", got)
	}
}

// endsAfter is a context that ends when it was looked at so many times.
type endsAfter struct {
	context.Context
	looks int
}

func (c *endsAfter) Err() error {
	if c.looks--; c.looks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestALongLookEndsWithItsCaller: in the longest text that there may be, values are looked for no longer than the caller waits.
func TestALongLookEndsWithItsCaller(t *testing.T) {
	var x index
	for i := range maxLocal {
		x.add(fmt.Sprintf("aaaaaaa1%0*d", short, i), kind{reference.Secret, "TEST"}, maxLocal)
	}
	text := strings.Repeat("aaaaaaa1", 1<<20/8)
	ctx := &endsAfter{t.Context(), 3}
	if found, err := x.find(ctx, text); !errors.Is(err, context.DeadlineExceeded) || found != nil || ctx.looks != -1 {
		t.Errorf("%d places and %v, %d looks after the end", len(found), err, -1-ctx.looks)
	}
	ctx = &endsAfter{t.Context(), len(text)}
	if _, err := x.find(ctx, text); err != nil || len(text)-ctx.looks != len(text)/stride {
		t.Errorf("%v after %d looks", err, len(text)-ctx.looks)
	}
}

func TestTheVaultsOwnCredentials(t *testing.T) {
	const mine = "TheClientsTokenWhateverItLooksLike"
	b := New(Config{Credential: func(word string) bool { return word == mine }})
	got := tokenise(t, b, "s", "it sent "+mine+" to me", mine[1:])
	if strings.Contains(got[0], mine) || got[1] != mine[1:] {
		t.Errorf("got %q", got)
	}
	for i, text := range []string{"it sent %.", "GET /mcp/%/x", "x=%&y", "https://h/?x=%", "--as=%", "a/b=%...", "%=", "%\n", strings.Repeat("a/", maxCredential/2-4) + "%", strings.Repeat("a", maxCredential) + "=%"} {
		if got := tokenise(t, b, fmt.Sprint("s", i), strings.ReplaceAll(text, "%", mine))[0]; references.ReplaceAllString(got, "%") != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// TestWhatWasReleasedIsFoundInEverySession: whatever it looks like, and by itself alone; its reference brings nothing back, and agents'
// own texts do not show what is stored.
func TestWhatWasReleasedIsFoundInEverySession(t *testing.T) {
	b := New(Config{})
	const odd, line = "correct-horse", "0123456789abcdefghij=VWXYZ"
	if got := tokenise(t, b, "s", odd)[0]; got != odd {
		t.Fatalf("before it is released: %q", got)
	}
	b.Release([]byte(odd + "\n"))
	b.Release([]byte("{\n  \"type\": \"account\",\n" + line + "\n}"))
	want := regexp.MustCompile(`^<\[\[SECRET:CREDENTIAL:\w+\]\]>$`)
	for _, text := range []string{odd, line, base64.StdEncoding.EncodeToString([]byte("user:" + odd)), url.QueryEscape(line)} {
		for _, session := range []string{"s", "other"} {
			result, err := b.Tokenise(t.Context(), session, OriginSink, []string{"<" + text + ">"})
			if err != nil || !want.MatchString(result.Texts[0]) || result.Secrets != 1 {
				t.Errorf("%s: %q became %q, %v", session, text, result.Texts, err)
			}
		}
	}
	if got := tokenise(t, b, "s", `"type": "account",`)[0]; got != `"type": "account",` {
		t.Errorf("a line of a file with a space in it: %q", got)
	}
	if said, err := b.Tokenise(t.Context(), "s", OriginAgent, []string{odd}); err != nil || said.Texts[0] != odd {
		t.Errorf("the agent's own: %q, %v", said.Texts, err)
	}
	for _, held := range b.sessions["s"].byID {
		if held.Text != "" {
			t.Errorf("the session holds %q", held.Text)
		}
	}
}

// TestLookalikesAreCounted: what is misspelled, and what is another session's.
func TestLookalikesAreCounted(t *testing.T) {
	b := New(Config{})
	ref := tokenise(t, b, "s", "password=hunter2-and-more")[0]
	tokenise(t, b, "s", ref)
	if n := b.Lookalikes(); n != 0 {
		t.Errorf("%d of the session's own", n)
	}
	tokenise(t, b, "other", ref, "[[PII:EMAIL:tkn_x]] and [[SECRET:A:aaaaaaaaaaaaaaaa]]")
	if n := b.Lookalikes(); n != 3 {
		t.Errorf("%d look-alikes", n)
	}
}

func FuzzTokenise(f *testing.F) {
	for _, s := range []string{"password=hunter2", pem, "[[SECRET:A:aaaaaaaaaaaaaaaa]]", "$pii_ref", "Authorization: Bearer " + openAI, "postgres://a:b@c", "\xff[["} {
		f.Add(s)
	}
	b := New(Config{})
	f.Fuzz(func(t *testing.T, text string) {
		session := fmt.Sprintf("%x", text)
		defer b.Forget(t.Context(), func(string) bool { return false })
		result, err := b.Tokenise(t.Context(), session, OriginSink, []string{text, "client_secret=" + "s3cr3t-value-0 " + text})
		must(t, err)
		for _, o := range result.Texts {
			if utf8.ValidString(text) && !utf8.ValidString(o) {
				t.Errorf("%q became %q", text, o)
			}
			found, _ := reference.Scan(o, nil)
			for _, f := range found {
				if b.sessions[session].byID[f.ID] == nil {
					t.Errorf("%q shows the reference %s, which nobody issued", o, f.Marshal())
				}
			}
			for _, bucket := range b.sessions[session].values.values {
				for _, v := range bucket {
					if strings.Contains(o, v.text) && !strings.Contains(v.text, "[") {
						t.Errorf("%q shows %q", o, v.text)
					}
				}
			}
		}
	})
}

// Text is looked at in time linear in its length, whatever it is.
func BenchmarkTokenise(b *testing.B) {
	line := "INFO 11-22 01:00:00 [loader.py:12] Loading weights took 12.34 seconds, token throughput 3.4, key cache 12%\n"
	hostile := "api_key=a token:b secret= ey ey ey key key bearer basic --api-key twitter cloudflare discord sk- hf_ -----begin://a:b"
	for name, text := range map[string]string{
		"40 lines": strings.Repeat(line, 40), "200 KB": strings.Repeat(line, 2000), "200 KB, hostile": strings.Repeat(hostile, 1800),
		"64 KiB of keys' beginnings": strings.Repeat("-----BEGIN PRIVATE "+"KEY-----", 2048),
	} {
		b.Run(name, func(b *testing.B) {
			book := New(Config{})
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := book.Tokenise(b.Context(), "s", OriginSink, []string{text}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
