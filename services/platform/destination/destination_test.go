package destination

import (
	"errors"
	"strings"
	"testing"
)

func TestParseURLRefuses(t *testing.T) {
	for raw, want := range map[string]Rule{
		"":                               RuleScheme,
		"://":                            RuleURL,
		"allowed.test":                   RuleScheme,
		"//allowed.test/":                RuleScheme,
		"ftp://allowed.test/":            RuleScheme,
		"file:///etc/passwd":             RuleScheme,
		"gopher://127.0.0.1:6379/_x":     RuleScheme,
		"unix:///run/docker.sock":        RuleScheme,
		"http:allowed.test":              RuleURL,
		"http:///x":                      RuleURL,
		"http://:80/":                    RuleURL,
		"http://user@allowed.test/":      RuleURL,
		"http://allowed.test@127.0.0.1/": RuleURL,
		"http://allowed.test:/":          RuleURL,
		"http://allowed.test:0/":         RuleURL,
		"http://allowed.test:080/":       RuleURL,
		"http://allowed.test:65536/":     RuleURL,
		"http://allowed.test:+80/":       RuleURL,
		"http://2130706433/":             RuleURL,
		"http://0x7f000001/":             RuleURL,
		"http://0X7F.1/":                 RuleURL,
		"http://017700000001/":           RuleURL,
		"http://0177.0.0.1/":             RuleURL,
		"http://127.1/":                  RuleURL,
		"http://127.0.0.1./":             RuleURL,
		"http://127.0.0.01/":             RuleURL,
		"http://127。0。0。1/":              RuleURL,
		"http://１２７.０.０.１/":              RuleURL,
		"http://①②⑦.⓪.⓪.①/":              RuleURL,
		"http://127%2e0.0.1/":            RuleURL,
		"http://allowed.test%00.evil/":   RuleURL,
		"http://allowed.test\\@evil/":    RuleURL,
		"http://allowed.test\t/":         RuleURL,
		"http://allowed test/":           RuleURL,
		"http://allowed..test/":          RuleURL,
		"http://.test/":                  RuleURL,
		"http://-allowed.test/":          RuleURL,
		"http://allowed_.test/":          RuleURL,
		"http://*.test/":                 RuleURL,
		"http://allowed.test../":         RuleURL,
		"http://[::ffff:127.0.0.1]/":     RuleURL,
		"http://[::FFFF:7f00:1]/":        RuleURL,
		"http://[0:0:0:0:0:0:0:1]/":      RuleURL,
		"http://[fe80::1%25eth0]/":       RuleURL,
		"http://[v1.x]/":                 RuleURL,
		"http://w\xbccher.example/":      RuleURL,
		"http://[127.0.0.1]/":            RuleURL,
		"http://::1/":                    RuleURL,
		"http://" + strings.Repeat("a.", 10_000) + "test/":          RuleURL,
		"http://" + strings.Repeat("a", 64) + ".test/":              RuleURL,
		"http://" + strings.Repeat("abcdefgh.", 29) + "test/":       RuleURL,
		"http://allowed.test/" + strings.Repeat("a", maxURL):        RuleURL,
		"http://xn--" + strings.Repeat("a", 50) + "-0000.test/":     RuleURL,
		"http://" + strings.Repeat("ü", 10_000) + ".allowed.test/x": RuleURL,
	} {
		_, _, err := ParseURL(raw)
		refused := (*Error)(nil)
		if !errors.As(err, &refused) || refused.Rule != want {
			t.Errorf("%.80q: %v, want rule %s", raw, err, want)
		}
	}
}

// TestLongNames: a name is refused for its length before anything is made of it.
func TestLongNames(t *testing.T) {
	if host, err := ParseHost(strings.Repeat("ü.", 1<<20)); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%.20s, %v", host, err)
	}
}

func TestParseURL(t *testing.T) {
	for raw, want := range map[string][2]string{
		"http://allowed.test":                 {"http://allowed.test", "allowed.test:80"},
		"HTTPS://ALLOWED.test./a?b=c#d":       {"https://allowed.test/a?b=c", "allowed.test:443"},
		"https://allowed.test:443/":           {"https://allowed.test/", "allowed.test:443"},
		"https://allowed.test:8443/%2e%2e/":   {"https://allowed.test:8443/%2e%2e/", "allowed.test:8443"},
		"https://bücher.example/":             {"https://xn--bcher-kva.example/", "xn--bcher-kva.example:443"},
		"https://ＡＬＬＯＷＥＤ.test/":               {"https://allowed.test/", "allowed.test:443"},
		"http://127.0.0.1:8080/":              {"http://127.0.0.1:8080/", "127.0.0.1:8080"},
		"http://[2606:4700::1111]/":           {"http://[2606:4700::1111]/", "[2606:4700::1111]:80"},
		"http://[2606:4700::1111]:8080/":      {"http://[2606:4700::1111]:8080/", "[2606:4700::1111]:8080"},
		"https://1.allowed.test/127.0.0.1":    {"https://1.allowed.test/127.0.0.1", "1.allowed.test:443"},
		"http://127.0.0.1.allowed.test/":      {"http://127.0.0.1.allowed.test/", "127.0.0.1.allowed.test:80"},
		"http://allowed.test/?u=http://a@b/#": {"http://allowed.test/?u=http://a@b/", "allowed.test:80"},
	} {
		u, to, err := ParseURL(raw)
		if err != nil || u.String() != want[0] || to.String() != want[1] {
			t.Errorf("%s: %v, %s, %v; want %s", raw, u, to, err, want)
			continue
		}
		again, same, err := ParseURL(u.String())
		if err != nil || again.String() != u.String() || same != to {
			t.Errorf("%s is read as %s, and that as %s: %v", raw, u, again, err)
		}
	}
}

// FuzzParseURL: what was read once is read the same again, and its host is a name or an address in the one spelling.
func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{"http://allowed.test/", "https://bücher.example:8443/a?b#c", "http://[::1]:80/", "http://0x7f.1/", "http://a@b/", "http://１２７.０.０.１/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, to, err := ParseURL(raw)
		if err != nil {
			return
		}
		again, same, err := ParseURL(u.String())
		if err != nil || same != to || again.String() != u.String() {
			t.Errorf("%q is read as %s, and that as %v %s: %v", raw, u, again, same, err)
		}
		if host, err := ParseHost(to.Host); err != nil || host != to.Host {
			t.Errorf("%q has the host %q, which is read as %q: %v", raw, to.Host, host, err)
		}
	})
}
