package resource

import (
	"strings"
	"testing"
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
		`"api_key":"abc"`:                           `"api_key":(hidden)"`,
		"the token is xyz123":                       "the token is (hidden)",
		"Authorization: Bearer abc.def":             "Authorization: (hidden)",
		"sk-proj-abcdefghijklmnop1234":              "(hidden)",
		"ghp_abcdefghijklmnopqrstuvwxyz0123456789":  "(hidden)",
		"AKIAABCDEFGHIJKLMNOP":                      "(hidden)",
		"key AKIAABCDEFGHIJKLMNOP":                  "key (hidden)",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln": "(hidden)",
		"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----": "(hidden)",
		"http://user:pass@127.0.0.1:8000/v1":                                          "http://(hidden)@127.0.0.1:8000/v1",
	} {
		got := hide(in)
		if got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
		if again := hide(got); again != got {
			t.Errorf("%q becomes %q, and then %q", in, got, again)
		}
	}
	for _, plain := range []string{
		"", "demo-chat", "Llama 3.1 8B, instruct", "meta-llama/Llama-3.1-8B", "http://127.0.0.1:17450/v1", "GPU 0/1", "and/or", "24 GiB / 48 GiB",
		"the program ended by itself", "1/2 of it", "tokens per second", "https://example.com/a/b?c=d", "10:30", "a = b",
	} {
		if got := hide(plain); got != plain {
			t.Errorf("%q becomes %q", plain, got)
		}
	}
}

// FuzzHide: what is hidden stays so, and nothing brings a path back.
func FuzzHide(f *testing.F) {
	for _, seed := range []string{"/etc/passwd", "A=/x", "token: /home/x", "Bearer Bearer x", "://a@b@c", "~/~/", "file:/ /x", "((path))/x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		once := hide(s)
		if again := hide(once); again != once {
			t.Errorf("%q becomes %q, and then %q", s, once, again)
		}
		for _, word := range strings.Fields(once) {
			if strings.HasPrefix(word, "/etc/") || strings.HasPrefix(word, "/home/") {
				t.Errorf("%q still shows %q", s, word)
			}
		}
	})
}
