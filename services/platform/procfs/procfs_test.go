package procfs

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"testing"
)

func TestCGroups(t *testing.T) {
	t.Parallel()
	got := maps.Collect(CGroups("12:cpu,cpuacct:/a\n1:name=systemd:/b:c d\nnonsense\n0::/e\n"))
	if want := map[string]string{"cpu,cpuacct": "/a", "name=systemd": "/b:c d", "": "/e"}; !maps.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{"7 (a) b) (c) S 1 7": {"S", "1", "7"}, "7 (x)": {}, "7 x S": nil, "": nil} {
		if got := Stat([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestParseSockets passes over what is no line, and a line allocates nothing: a busy host has tens of thousands.
func TestParseSockets(t *testing.T) {
	const line = "   0: 0100007F:1F90 0200007F:0016 01 00000000:00000000 00:00000000 00000000  1001        0 111 1 0000000000000000 20 4 30 10 -1\n"
	got := ParseSockets([]byte("head\n\n" + line + line[:90]))
	want := []Socket{{
		Local: netip.MustParseAddrPort("127.0.0.1:8080"), Remote: netip.MustParseAddrPort("127.0.0.2:22"), State: Established, User: "1001", Inode: "111",
	}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	many := bytes.Repeat([]byte(line), 1000)
	if n := testing.AllocsPerRun(10, func() { ParseSockets(many) }); n > 10 {
		t.Errorf("1000 lines allocate %v times", n)
	}
}
