package suspicion

import (
	"strings"
	"testing"

	"golang.org/x/net/idna"
)

func TestOf(t *testing.T) {
	t.Parallel()
	ascii := func(name string) string {
		t.Helper()
		host, err := idna.ToASCII(name)
		if err != nil {
			t.Fatal(err)
		}
		return host
	}
	for host, want := range map[string]struct {
		worst Severity
		says  string
	}{
		"github.com": {}, "api.github.com": {}, "docs.python.org": {}, "example.org": {}, "pypi.org": {}, "crates.io": {}, "d111.cloudfront.net": {},
		"apples.example":               {}, // short names have too many neighbours
		"githud.com":                   {Medium, "one letter away from github.com"},
		"githubb.com":                  {Medium, "one letter away from github.com"},
		"gihub.com":                    {Medium, "one letter away from github.com"},
		"g1thub.com":                   {High, "read as github.com"},
		"paypa1.com":                   {High, "read as paypal.com"},
		"rnicrosoft.com":               {High, "read as microsoft.com"},
		"github.com.evil-host.example": {High, "begins like github.com"},
		"www.paypal.com.login.example": {High, "begins like paypal.com"},
		"openai-login.example":         {Medium, "has in its name that of openai.com"},
		ascii("gіthub.com"):            {High, "several scripts: Cyrillic, Latin"},
		ascii("раураl.com"):            {High, "read as paypal.com"},
		ascii("пример.рф"):             {Low, "written in Cyrillic"},
		ascii("日本語テスト.jp"):             {Low, "written in Han"},
		"free-models.zip":              {Medium, ".zip"},
		"a.b.xyz":                      {Medium, ".xyz"},
		strings.Repeat("a1b2", 11) + ".collector.example": {Medium, "carry data out"},
		"93.184.216.34": {Low, "an address"},
	} {
		flags := Of(host)
		text := ""
		for _, f := range flags {
			text += f.Why + "; "
		}
		if Worst(flags) != want.worst || !strings.Contains(text, want.says) || len(flags) > 0 && flags[0].Severity != want.worst {
			t.Errorf("%s: %v %s", host, Worst(flags), text)
		}
	}
	if CDN("d111.cloudfront.net") != "cloudfront.net" || CDN("cloudfront.net.evil.example") != "" || CDN("example.org") != "" {
		t.Error("delivery networks are told apart wrongly")
	}
}

func TestParseSeverity(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"High", "all", "3", "medium "} {
		if s, err := ParseSeverity(word); err == nil {
			t.Errorf("%q is %v", word, s)
		}
	}
	for word, want := range map[string]Severity{"": None, "off": None, "low": Low, "medium": Medium, "high": High} {
		if got, err := ParseSeverity(word); err != nil || got != want {
			t.Errorf("%q: %v, %v", word, got, err)
		}
	}
	if High.String() != "high" || Severity(99).String() != "high" {
		t.Error("a severity's word")
	}
}

// FuzzOf: whatever a host's name is, flags are few and made of our own words, but for known names.
func FuzzOf(f *testing.F) {
	for _, seed := range []string{"github.com", "xn--gthub-n4a.com", "xn--", "..", "a.zip", "::1", strings.Repeat("a.", 120)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if flags := Of(host); len(flags) > 4 {
			t.Errorf("%q: %v", host, flags)
		}
	})
}
