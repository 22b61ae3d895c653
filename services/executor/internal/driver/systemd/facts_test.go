package systemd

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// begun is a unit that was started, as systemd tells of it.
func begun(more properties) properties {
	p := properties{
		"Id": "x.service", "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Restart": "no",
		"FragmentPath": fragment, "DropInPaths": []string{}, "NeedDaemonReload": false,
		"MainPID": uint32(42), "ControlGroup": "/system.slice/x.service", "NRestarts": uint32(0), "Result": "success",
		"InvocationID": []byte("0123456789abcdef"), "ActiveEnterTimestamp": uint64(1_700_000_000_000_000),
		"InactiveExitTimestampMonotonic": uint64(10), "ActiveEnterTimestampMonotonic": uint64(20),
		"ActiveExitTimestampMonotonic": uint64(0), "ExecMainExitTimestampMonotonic": uint64(0),
		"ExecMainCode": int32(0), "ExecMainStatus": int32(0),
		"MemoryMax": ^uint64(0), "MemoryLimit": ^uint64(0), "PrivateNetwork": false, "Job": []any{uint32(0), "/"},
	}
	maps.Copy(p, more)
	return p
}

// over is a unit that ran and does not any more.
func over(state string, left, programEnd int, more properties) properties {
	p := begun(properties{
		"ActiveState": state, "SubState": "dead", "MainPID": uint32(0), "ControlGroup": "",
		"ActiveExitTimestampMonotonic": uint64(left), "ExecMainExitTimestampMonotonic": uint64(programEnd),
	})
	maps.Copy(p, more)
	return p
}

func TestReadTakesNothingOfTheWrongType(t *testing.T) {
	f := read(properties{
		"Id": 7, "LoadState": []byte("loaded"), "MainPID": "42", "InvocationID": "0123", "Job": "none", "DropInPaths": "x",
		"IPAddressDeny": "any", "ActiveEnterTimestamp": int64(-1), "MemoryMax": "infinity", "Result": true,
	})
	if diff := cmp.Diff(facts{}, f, cmp.AllowUnexported(facts{}, run{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := f.refusal("x.service"); !errors.Is(err, driver.ErrUnitMissing) {
		t.Errorf("refusal = %v", err)
	}
}

func TestWhoseProgramItIs(t *testing.T) {
	as := func(name string) properties { return begun(properties{"User": name}) }
	command := func(flags ...string) properties {
		return begun(properties{"User": "nobody", "ExecStartEx": [][]any{{"/bin/true", []string{"/bin/true"}, flags}}})
	}
	self := strconv.Itoa(os.Getuid())
	for name, c := range map[string]struct {
		props properties
		want  bool
	}{
		"nobody said":                   {begun(nil), false},
		"root":                          {as("root"), false},
		"root's number":                 {as("0"), false},
		"the executor's own":            {as(self), false},
		"a program above its user":      {command("privileged"), false},
		"without a change of user":      {command("ignore-failure", "no-setuid"), false},
		"flags that cannot be read":     {begun(properties{"User": "nobody", "ExecStartEx": [][]any{{"x", "y", 7}}}), false},
		"another user":                  {as("nobody"), true},
		"another user, any failure":     {command("ignore-failure"), true},
		"one that systemd makes up":     {begun(properties{"DynamicUser": true}), true},
		"made up, and above":            {begun(properties{"DynamicUser": true, "ExecStartEx": [][]any{{"x", []string{}, []string{"privileged"}}}}), false},
		"made up, and named":            {begun(properties{"DynamicUser": true, "User": "durward-service-x"}), true},
		"made up, and there: root":      {begun(properties{"DynamicUser": true, "User": "root"}), false},
		"a user that nobody knows here": {as("no-such-user"), true},
	} {
		if got := read(c.props).confined(os.Getuid()); got != c.want {
			t.Errorf("%s: confined %v", name, got)
		}
		if d := (&Driver{cfg: Config{Development: true}}); d.refusal(read(c.props), "x.service") != nil {
			t.Errorf("%s: refused in development", name)
		}
		if d := (&Driver{journal: journal{user: true}}); d.refusal(read(c.props), "x.service") != nil {
			t.Errorf("%s: refused of a user's own manager", name)
		}
		if err := (&Driver{}).refusal(read(c.props), "x.service"); (err == nil) != c.want || err != nil && !errors.Is(err, driver.ErrNotPermitted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusal(t *testing.T) {
	cases := []struct {
		name  string
		props properties
		want  error
	}{
		{"not there", begun(properties{"LoadState": "not-found"}), driver.ErrUnitMissing},
		{"masked", begun(properties{"LoadState": "masked"}), errBadUnit},
		{"nonsense", begun(properties{"LoadState": "bad-setting"}), errBadUnit},
		{"another's alias", begun(properties{"Id": "y.service"}), errAlias},
		{"changed since", begun(properties{"NeedDaemonReload": true}), errReload},
		{"good", begun(nil), nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := read(c.props).refusal("x.service")
			if !errors.Is(err, c.want) {
				t.Errorf("refusal = %v, want %v", err, c.want)
			}
			if err != nil && !errors.Is(err, driver.ErrNotStarted) && !errors.Is(err, driver.ErrUnitMissing) && !errors.Is(err, driver.ErrChanged) {
				t.Errorf("refusal = %v, which is none of the driver package's", err)
			}
		})
	}
}

func TestSight(t *testing.T) {
	cases := []struct {
		name  string
		props properties
		state driver.State
		cause string
	}{
		{"running", begun(nil), driver.Running, ""},
		{"reading its configuration again", begun(properties{"ActiveState": "reloading"}), driver.Running, ""},
		{"starting", begun(properties{"ActiveState": "activating", "SubState": "start"}), driver.Starting, ""},
		{"waiting to be started again", begun(properties{"ActiveState": "activating", "SubState": "auto-restart"}), driver.Starting, ""},
		{"stopping", begun(properties{"ActiveState": "deactivating"}), driver.Stopping, ""},
		{"never started", properties{"LoadState": "loaded", "ActiveState": "inactive"}, driver.Stopped, ""},
		{"not there", properties{"LoadState": "not-found", "ActiveState": "inactive"}, driver.Stopped, driver.CauseUnitMissing},
		{"stopped by somebody", over("inactive", 30, 40, nil), driver.Stopped, ""},
		{"ended by itself", over("inactive", 41, 40, nil), driver.Ended, driver.CauseExited},
		{"ended before it was active", over("inactive", 0, 15, properties{"ActiveEnterTimestampMonotonic": uint64(0)}), driver.Ended, driver.CauseExited},
		{"ended before it was active, this time", over("inactive", 8, 15, properties{"ActiveEnterTimestampMonotonic": uint64(5)}), driver.Ended, driver.CauseExited},
		{"the program of an earlier time", over("inactive", 0, 5, nil), driver.Stopped, ""},
		{"failed", over("failed", 41, 40, properties{"Result": "exit-code", "ExecMainCode": int32(1), "ExecMainStatus": int32(3)}), driver.Ended, driver.CauseExited},
		{"out of memory", over("failed", 41, 40, properties{"Result": "oom-kill"}), driver.Ended, driver.CauseOutOfMemory},
		{"killed, with a limit", over("failed", 41, 40, properties{"Result": "signal", "ExecMainCode": int32(2), "ExecMainStatus": int32(9), "MemoryMax": uint64(1 << 20)}), driver.Ended, driver.CauseOutOfMemory},
		{"killed, without a limit", over("failed", 41, 40, properties{"Result": "signal", "ExecMainCode": int32(2), "ExecMainStatus": int32(9)}), driver.Ended, driver.CauseExited},
		{"a start that took too long", over("failed", 0, 40, properties{"Result": "timeout"}), driver.Ended, driver.CauseTimeout},
		{"a watchdog", over("failed", 41, 40, properties{"Result": "watchdog"}), driver.Ended, driver.CauseStalled},
		{"too often", over("failed", 41, 40, properties{"Result": "start-limit-hit"}), driver.Ended, driver.CauseRestartLimit},
		{"no program", over("failed", 41, 40, properties{"Result": "exit-code", "ExecMainCode": int32(1), "ExecMainStatus": int32(203)}), driver.Ended, driver.CauseProgramMissing},
		{"no user", over("failed", 41, 40, properties{"Result": "exit-code", "ExecMainCode": int32(1), "ExecMainStatus": int32(217)}), driver.Ended, driver.CauseNotPermitted},
		{"killed by signal 203, if there were one", over("failed", 41, 40, properties{"Result": "signal", "ExecMainCode": int32(2), "ExecMainStatus": int32(203)}), driver.Ended, driver.CauseExited},
		{"a state that is not known", begun(properties{"ActiveState": "maintenance"}), driver.Unknown, driver.CauseNoManager},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			u := &unit{facts: read(c.props)}
			if u.facts.ended() {
				u.cause = u.facts.bluntCause(true)
			}
			got := u.status()
			if got.State != c.state || got.Cause != c.cause {
				t.Errorf("sight = %+v, want state %d and %q", got, c.state, c.cause)
			}
			if running := got.State == driver.Running; running && (got.PID != 42 || got.CGroup != "/system.slice/x.service" || !got.Since.Equal(time.Unix(1_700_000_000, 0))) {
				t.Errorf("sight = %+v", got)
			}
			// What was settled is over.
			if u.settled = u.facts.run.invocation; u.settled != "" && c.state == driver.Ended {
				if got := u.status(); got.State != driver.Stopped || got.Cause != "" {
					t.Errorf("settled: %+v", got)
				}
			}
		})
	}
}

func TestNetworkExpectation(t *testing.T) {
	any4, any6 := []any{int32(2), []byte{0, 0, 0, 0}, uint32(0)}, []any{int32(10), make([]byte, 16), uint32(0)}
	lo4 := []any{int32(2), []byte{127, 0, 0, 0}, uint32(8)}
	lo6 := []any{int32(10), append(make([]byte, 15), 1), uint32(128)}
	lan := []any{int32(2), []byte{10, 0, 0, 0}, uint32(8)}
	wide := []any{int32(2), []byte{127, 0, 0, 0}, uint32(1)}
	cases := []struct {
		name     string
		expected string
		props    properties
		filters  bool
		want     driver.Network
	}{
		{"nothing asked", "", properties{}, true, driver.NetworkUnasked},
		{"all of it", catalog.NetworkHost, properties{}, true, driver.NetworkUnasked},
		{"open", catalog.NetworkLoopback, properties{}, true, driver.NetworkNotEnforced},
		{"filtered", catalog.NetworkLoopback, properties{"IPAddressDeny": [][]any{any4, any6}, "IPAddressAllow": [][]any{lo4, lo6}}, true, driver.NetworkEnforced},
		{"filtered, where nothing filters", catalog.NetworkLoopback, properties{"IPAddressDeny": [][]any{any4, any6}}, false, driver.NetworkNotEnforced},
		{"one family alone", catalog.NetworkLoopback, properties{"IPAddressDeny": [][]any{any4}}, true, driver.NetworkNotEnforced},
		{"the local network too", catalog.NetworkLoopback, properties{"IPAddressDeny": [][]any{any4, any6}, "IPAddressAllow": [][]any{lo4, lan}}, true, driver.NetworkNotEnforced},
		{"more than loopback", catalog.NetworkLoopback, properties{"IPAddressDeny": [][]any{any4, any6}, "IPAddressAllow": [][]any{wide}}, true, driver.NetworkNotEnforced},
		{"its own", catalog.NetworkLoopback, properties{"PrivateNetwork": true}, false, driver.NetworkEnforced},
		{"none, its own", catalog.NetworkNone, properties{"PrivateNetwork": true}, false, driver.NetworkEnforced},
		{"none, filtered", catalog.NetworkNone, properties{"IPAddressDeny": [][]any{any4, any6}}, true, driver.NetworkNotEnforced},
		{"ranges that are none", catalog.NetworkLoopback, properties{"IPAddressDeny": [][]any{{int32(2), []byte{1}, uint32(0)}}}, true, driver.NetworkNotEnforced},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := read(c.props).network(&catalog.Service{Network: c.expected}, c.filters); got != c.want {
				t.Errorf("network = %d, want %d", got, c.want)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	a, b := file("a", "one"), file("b", "two")
	seen := map[string]bool{}
	for _, f := range []facts{
		{fragment: a}, {fragment: b}, {fragment: a, dropIns: []string{b}}, {fragment: b, dropIns: []string{a}},
		{fragment: a, dropIns: []string{file("c", "two")}}, {fragment: a, dropIns: []string{file("d", "")}},
		{fragment: a, dropIns: []string{file("e", ""), file("f", "")}},
	} {
		got, err := digest(f)
		if err != nil || !strings.HasPrefix(got, "sha256:") || seen[got] {
			t.Errorf("digest of %s and %v = %q, %v", f.fragment, f.dropIns, got, err)
		}
		seen[got] = true
	}
	for name, path := range map[string]string{
		"not there": filepath.Join(dir, "none"), "a folder": dir, "no path": "", "too long": file("long", strings.Repeat("x", maxUnitFile+1)),
	} {
		if got, err := digest(facts{fragment: path}); !errors.Is(err, errBadUnit) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
