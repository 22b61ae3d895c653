package drill

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/godbus/dbus/v5"

	"durward.internal/deploy/e2e/harness"
)

// manager is a user's systemd with one unit, which it never starts: it counts how often that is asked for.
type manager struct {
	unit   map[string]dbus.Variant
	starts atomic.Int64
}

// serve answers who connects, until the listener is closed.
func (m *manager) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			for said := ""; !strings.HasPrefix(said, "BEGIN"); {
				if said, err = in.ReadString('\n'); err != nil {
					return
				}
				switch {
				case strings.Contains(said, "AUTH EXTERNAL"):
					_, err = fmt.Fprintf(conn, "OK %032d\r\n", 0)
				case strings.Contains(said, "AUTH"):
					_, err = fmt.Fprint(conn, "REJECTED EXTERNAL\r\n")
				case strings.Contains(said, "NEGOTIATE"):
					_, err = fmt.Fprint(conn, "ERROR\r\n")
				}
				if err != nil {
					return
				}
			}
			for err == nil {
				var asked *dbus.Message
				if asked, err = dbus.DecodeMessage(in); err == nil {
					err = m.answer(asked).EncodeTo(conn, binary.LittleEndian)
				}
			}
		}()
	}
}

// answer is what systemd says to a call.
func (m *manager) answer(asked *dbus.Message) *dbus.Message {
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(asked.Serial())}}
	switch asked.Headers[dbus.FieldMember].Value() {
	case "GetAll":
		reply.Body = []any{m.unit}
	case "ListUnitsByNames":
		reply.Body = []any{[]struct {
			Name, Description, Load, Active, Sub, Following string
			Path                                            dbus.ObjectPath
			Job                                             uint32
			JobType                                         string
			JobPath                                         dbus.ObjectPath
		}{{Name: "drill.service", Load: "loaded", Active: "inactive", Sub: "dead", Path: "/org/freedesktop/systemd1/unit/drill_2eservice", JobPath: "/"}}}
	case "StartUnit":
		m.starts.Add(1)
		reply.Type, reply.Headers[dbus.FieldErrorName] = dbus.TypeError, dbus.MakeVariant("org.freedesktop.systemd1.Failed")
	}
	if len(reply.Body) > 0 {
		reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(reply.Body...))
	}
	return reply
}

// editedUnit has a start of a unit approved, and edits the unit's file, its program, a file that its command names, or its
// EnvironmentFile= before the start is carried out. Its effects are starts that systemd is asked for.
func editedUnit(w *world) (trials, effects int) {
	dir := w.t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	files := []string{"drill.service", "program", "svc.py", "environment"}
	for _, name := range files {
		w.must(os.WriteFile(at(name), []byte("as it was"), 0o600))
	}
	m := &manager{unit: map[string]dbus.Variant{}}
	for key, value := range map[string]any{
		"Id": "drill.service", "LoadState": "loaded", "ActiveState": "inactive", "SubState": "dead", "FragmentPath": at("drill.service"),
		"ExecStart": []struct {
			Path   string
			Argv   []string
			Ignore bool
		}{{at("program"), []string{"program", at("svc.py")}, false}},
		"EnvironmentFiles": []struct {
			Path   string
			Ignore bool
		}{{at("environment"), false}},
	} {
		m.unit[key] = dbus.MakeVariant(value)
	}
	// Where the executor looks for the manager of its user, it finds this one.
	socket := filepath.Join(dir, fmt.Sprint(os.Getuid()), "systemd", "private")
	w.must(os.MkdirAll(filepath.Dir(socket), 0o700))
	listener, err := net.Listen("unix", socket)
	w.must(err)
	defer listener.Close()
	go m.serve(listener)

	const catalogFile, executorFile = "config/catalogue.yaml", "config/executor.yaml"
	entries, config := w.h.ReadFile(catalogFile), w.h.ReadFile(executorFile)
	w.h.Process(harness.Executor).Kill()
	w.h.WriteFile(executorFile, config+"\nsystemd: {manager: user}\n")
	w.h.WriteFile(catalogFile, entries+fmt.Sprintf("  - {id: %s, name: Unit, driver: systemd, unit: drill.service}\n", scripted))
	w.h.LaunchUnder([]string{"unshare", "--mount", "--propagation", "private", "sh", "-ec", `mkdir -p /run/user; mount --bind "$0" /run/user; exec "$@"`, dir}, harness.Executor)
	w.h.AwaitHealthy(harness.Executor)
	w.awaitAll()
	harness.Eventually(w.t, "the unit is in the catalogue", func() error { _, err := w.preview("start_service", scripted); return err })
	s := w.open()
	started := func(name string) int {
		before := m.starts.Load()
		g := w.approved(s, "start_service", scripted)
		if name != "" {
			w.must(os.WriteFile(at(name), []byte("edited"), 0o600))
		}
		w.present(g, "start_service", scripted)
		return int(m.starts.Load() - before)
	}
	if started("") == 0 {
		w.t.Fatal("what was not edited is not started either, so that nothing is proved")
	}
	for _, name := range files {
		trials++
		n := started(name)
		if effects += n; n == 0 && w.weak {
			w.t.Errorf("an edited %s is refused without its guard too", name)
		}
		w.must(os.WriteFile(at(name), []byte("as it was"), 0o600))
	}
	w.h.Process(harness.Executor).Kill()
	w.h.WriteFile(catalogFile, entries)
	w.h.WriteFile(executorFile, config)
	w.restart(harness.Executor, w.guards(harness.Executor)...)
	return trials, effects
}
