package resource

import (
	"strings"
	"testing"

	"durward.internal/services/platform/clean"
)

func TestHide(t *testing.T) {
	for in, want := range map[string]string{
		"runs /usr/bin/vllm --port 1":               "runs (path) --port 1",
		"/etc/passwd":                               "(path)",
		"in ~/models and ~root/x":                   "in (path) and (path)",
		"see file:///home/me/x, please":             "see (path), please",
		`C:\Users\me\key.txt and \\host\share`:      "(path) and (path)",
		"model=/models/llama":                       "model=(path)",
		"(/opt/x)":                                  "((path))",
		"HF_TOKEN=hf_abcdefghijklmnopqrst":          "HF_TOKEN=(hidden)",
		"CUDA_VISIBLE_DEVICES=0,1 set":              "CUDA_VISIBLE_DEVICES=(hidden),1 set",
		"password: hunter2!":                        "password: (hidden)",
		`"api_key":"abc"`:                           `"api_key":(hidden)`,
		"the token is xyz123":                       "the token is (hidden)",
		"Authorization: Bearer abc.def":             "Authorization: (hidden)",
		"Bearer\nAPI_TOKEN=\"a b\"":                 "(hidden)",
		"Bearer\npassphrase: a b":                   "(hidden) (hidden)",
		"Bearer token is abc":                       "(hidden) is (hidden)",
		"token: Bearer abc":                         "token: (hidden)",
		"HF_TOKEN=basic abc":                        "HF_TOKEN=(hidden)",
		"sk-proj-abcdefghijklmnop1234":              "(hidden)",
		"ghp_abcdefghijklmnopqrstuvwxyz0123456789":  "(hidden)",
		"AKIAABCDEFGHIJKLMNOP":                      "(hidden)",
		"key AKIAABCDEFGHIJKLMNOP":                  "key (hidden)",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln": "(hidden)",
		"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----": "(hidden)",
		"http://user:pass@127.0.0.1:8000/v1":                                          "http://(hidden)@127.0.0.1:8000/v1",
		"weights:/home/alice/m.gguf":                                                  "weights:(path)",
		"nas:/export/x":                                                               "nas:(path)",
		"//home/alice/x":                                                              "(path)",
		"cc -L/home/alice/lib -lx":                                                    "cc -L(path) -lx",
		"--dir=/srv/x/y":                                                              "--dir=(path)",
		"Authorization: Basic YWxpY2U6b3BlbiBzZXNhbWU=":                               "Authorization: (hidden)",
		`Authorization: Digest username="a", response="b"`:                            "Authorization: (hidden)",
		"with Basic YWxpY2U6b3BlbiBzZXNhbWU=":                                         "with (hidden)",
		"Cookie: a=b; c=d":                                                            "Cookie: (hidden)",
		"pwd=abc":                                                                     "pwd=(hidden)",
		"PGPASSWORD='a b' psql":                                                       "PGPASSWORD=(hidden) psql",
		"passphrase: correct horse battery":                                           "passphrase: (hidden)",
		"http://h/v1?key=abc&n=1":                                                     "http://h/v1?key=(hidden)",
		"?key=abc":                                                                    "?key=(hidden)",
		"http://u:p/w@host":                                                           "http://(hidden)@host",
		"http://u:p@ss/w@host/v1":                                                     "http://(hidden)@host/v1",
		`API_TOKEN="abc def ghi" run`:                                                 "API_TOKEN=(hidden) run",
		`API_TOKEN="abc \"d e\" f" run`:                                               "API_TOKEN=(hidden) run",
		`API_TOKEN="abc def`:                                                          "API_TOKEN=(hidden)",
		`{"password":"abc def","n":1}`:                                                `{"password":(hidden),"n":1}`,
		"/home/alice/My Models/secret.gguf":                                           "(path)",
		"/home/alice/My Very Own Models/top secret.gguf":                              "(path)",
		`"/home/alice/My Models/top one" is read`:                                     `"(path)" is read`,
		`'C:\\My Models\\top secret'`:                                                 `'(path)'`,
		`C:\My Models\top.gguf`:                                                       "(path)",
		"/дом/алиса/x":                                                                "(path)",
		"веса:/дом/алиса":                                                             "веса:(path)",
		"in ../../etc/passwd":                                                         "in (path)",
	} {
		got := block(in)
		if got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
		if again := block(got); again != got {
			t.Errorf("%q becomes %q, and then %q", in, got, again)
		}
	}
	for _, plain := range []string{
		"s-skaaaaaaaaaaaaaaaaaaaaaaaa", "request r-hf22222222222222222222aaaa, session s-ghpbbbbbbbbbbbbbbbbbbbbbbb.",
		"", "demo-chat", "Llama 3.1 8B, instruct", "meta-llama/Llama-3.1-8B", "http://127.0.0.1:17450/v1", "GPU 0/1", "and/or", "24 GiB / 48 GiB",
		"the program ended by itself", "1/2 of it", "tokens per second", "https://example.com/a/b?c=d", "10:30", "a = b", "http://127.0.0.1:8000/v1",
		"20 tokens/s", "2026-11-21 17:40", "21/11/2026", "2026-11-21T17:40:00Z", "и/или", "東京/大阪", "input/output, read/write", "Basic information", "a key is needed", "e.g. 3.5 GiB",
		"durward://services/demo-chat", "the passage: one, two", "https://example.com:8443/a/b.html", "key: value", "keys and values", "5 km/h - 10 km/h", "s/a/b/",
	} {
		if got := block(plain); got != plain {
			t.Errorf("%q becomes %q", plain, got)
		}
	}
}

// FuzzHide: what is hidden stays so, and nothing brings a path back.
func FuzzHide(f *testing.F) {
	for _, seed := range []string{
		"/etc/passwd", "A=/x", "token: /home/x", "Bearer Bearer x", "://a@b@c", "~/~/", "file:/ /x", "((path))/x", "weights:/home/alice/m.gguf", "nas:/export/x",
		"//home/alice/x", "-L/home/alice/lib", "Authorization: Basic abc", "pwd=abc", "Bearer", "passphrase: x", "?key=abc", "http://u:p/w@host", `API_TOKEN="abc def ghi"`,
		"/home/alice/My Models/secret.gguf", "/дом/алиса/x", `TOKEN="a"b'c'd`, "token:\n/x y/z", `"/a b`, `C:\a b\c`, "\u200b/etc\u200b/x", "[bold rgb(/etc/x)]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		once := block(s)
		if again := block(once); again != once {
			t.Errorf("%q becomes %q, and then %q", s, once, again)
		}
		for _, word := range strings.Fields(once) {
			if clean.ShowsPath(word) {
				t.Errorf("%q still shows %q", s, word)
			}
		}
		// Nothing of a secret is left, whatever stands before it on other lines.
		for _, shown := range []string{`API_TOKEN="k9 k9 k9"`, "passphrase: k9 k9", "/home/k9/k9 k9/k9.gguf", `"/home/k9 k9/k9"`, "nas:/k9/k9", "http://u:k9/k9@h"} {
			if got := block(strings.ReplaceAll(once, "9", "") + "\n" + shown); strings.Contains(got, "k9") {
				t.Errorf("%q before %q is shown as %q", s, shown, got)
			}
		}
	})
}
