package procfs

import (
	"maps"
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
