package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/config"
)

func TestParseUnixRefuses(t *testing.T) {
	for _, addr := range []string{
		"", "unix:", "unix:/", "unix:@abstract", "unix:\x00abstract", "unix:run/x.sock", "unix:///run/x.sock", "unix:/run/../x.sock", "unix:/run//x", "unix:/run/x/",
		"unix:/run/x y", "unix:/run/%2fx", "UNIX:/run/x", "/run/x", "unix:/run/x,", "unix:/run/x,user=", "unix:/run/x,user", "unix:/run/x,uid=1",
		"unix:/run/x,user=a,user=a", "unix:/run/x,group=a,group=a", "unix:/run/x,group=a,user=b", "unix:/run/x,user=-a", "unix:/run/x,user=a b",
		"unix:/run/x,user=*", "unix:/run/x,user=12345678901", "unix:/run/x,user=a=b", "unix:/run/x, user=a", "unix:/" + strings.Repeat("x", 107),
	} {
		if u, err := config.ParseUnix(addr); err == nil {
			t.Errorf("%q is accepted: %+v", addr, u)
		}
	}
}

func TestParseUnix(t *testing.T) {
	for addr, want := range map[string]config.Unix{
		"unix:/run/x.sock":                  {Path: "/run/x.sock"},
		"unix:/run/x,user=durward-gateway":  {Path: "/run/x", Users: []string{"durward-gateway"}},
		"unix:/run/x,user=a,user=0,group=b": {Path: "/run/x", Users: []string{"a", "0"}, Groups: []string{"b"}},
		"unix:/run/x,group=b,group=c":       {Path: "/run/x", Groups: []string{"b", "c"}},
		"unix:/" + strings.Repeat("x", 106): {Path: "/" + strings.Repeat("x", 106)},
	} {
		got, err := config.ParseUnix(addr)
		if err != nil {
			t.Errorf("%q: %v", addr, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", addr, diff)
		}
		if got.String() != addr {
			t.Errorf("%q is written as %q", addr, got)
		}
	}
}

func TestUnixAddressesOfAProcess(t *testing.T) {
	c := valid()
	c.Listen, c.HealthListen = "unix:/run/d/grpc.sock,user=a,group=b", "unix:/run/d/health.sock"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	c.HealthListen = "unix:/run/d/grpc.sock,group=other"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "health_listen: is the same as listen") {
		t.Errorf("one socket for both: %v", err)
	}
	id := "spiffe://durward.local/audit/main"
	for _, addr := range []string{"unix:/run/d/grpc.sock", "unix:/run/d/grpc.sock,user=durward-audit"} {
		if err := (config.Peer{Address: addr, Identity: id}).Validate(); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, addr := range []string{"unix:", "unix:/run/d,user=a,user=b", "unix:/run/d,group=a"} {
		if (config.Peer{Address: addr, Identity: id}).Validate() == nil {
			t.Errorf("%s is accepted", addr)
		}
	}
}

// FuzzParseUnix looks for an address that is read in another spelling than it is written in.
func FuzzParseUnix(f *testing.F) {
	for _, seed := range []string{"unix:/run/x.sock", "unix:/run/x,user=a,user=0,group=b", "unix:@x", "unix:/a/../b", "127.0.0.1:1", "unix:/x,group=a,user=b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		if u, err := config.ParseUnix(addr); err == nil && u.String() != addr {
			t.Errorf("%q is read as %q", addr, u)
		}
	})
}
