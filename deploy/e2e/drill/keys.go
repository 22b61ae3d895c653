package drill

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// keyHolder is a program that has private keys.
type keyHolder struct {
	// role is the harness's process of that program, which stands still meanwhile; "" where there is none.
	role string
	line []string
	keys []string
	// says is what the program says when it goes to work. One without it is healthy then, or ends well.
	says string
	// check: it has -check.
	check bool
}

// keyHolders are all programs that have private keys, each ready to be started.
func (w *world) keyHolders() []keyHolder {
	w.t.Helper()
	tls := func(folder ...string) string {
		return w.h.Path(append(append([]string{"tls"}, folder...), "key.pem")...)
	}
	own := map[string][]string{
		harness.Vault: {w.h.Path("keys", "grant.key")}, harness.Audit: {w.h.Path("keys", "log.key")},
	}
	var all []keyHolder
	for _, role := range append(harness.Roles(), harness.Egress) {
		line := []string{role, "-config", w.h.Path("config", role+".yaml")}
		if role == harness.Executor || role == harness.Egress {
			line = append(line, "-development")
		}
		all = append(all, keyHolder{role: role, line: line, keys: append(own[role], tls(role)), check: true})
	}
	_, at := w.witnessFiles()
	w.h.WriteFile("collector.key", w.h.ReadFile("tls/relay/key.pem"))
	w.h.WriteFile("auditrelay.yaml", w.h.ReadFile("auditrelay.yaml")+fmt.Sprintf("state_dir: %s\nforward: [{name: lake, otlp: %q, authorities: %s, certificate: %s, key: %s}]\n",
		w.h.Path("forwarded"), at, w.h.Path("trust", "ca.pem"), w.h.Path("tls", "relay", "cert.pem"), w.h.Path("collector.key")))
	w.h.Durward("notify", "install")
	w.h.Durward("client", "add-tool", "example", "--may", "list_services", "--yes")
	w.h.AddKeyBound("bridged")
	durward := []string{"durward", "--home", w.h.Dir}
	return append(all,
		keyHolder{line: []string{"auditrelay", "-development", "-config", w.h.Path("auditrelay.yaml")}, keys: []string{tls("relay"), w.h.Path("collector.key")}, says: "relaying", check: true},
		keyHolder{line: []string{"auditwitness", "-config", w.h.Path("auditwitness.yaml")}, keys: []string{w.h.Path("witness.key")}, says: "serving", check: true},
		keyHolder{line: []string{"durward-notify", "-config", w.h.Path("config", "notify.yaml")}, keys: []string{tls("notifier")}, says: "Telling", check: true},
		keyHolder{line: []string{"example", w.h.Path("tls", "tools", "example", "connect.json"), "day"}, keys: []string{tls("tools", "example")}, says: "services "},
		keyHolder{line: append(durward, "approvals"), keys: []string{tls("operator")}},
		keyHolder{line: append(durward, "mcp", "--client", "bridged"), keys: []string{w.h.Path("clients", "bridged", "key")}},
	)
}

// readableKeys gives the private keys of every program, one at a time, modes with which other Unix users have them, in a sample one. Its effects are
// programs that go to work with one, and checks that pass it.
func readableKeys(w *world) (trials, effects int) {
	for _, holder := range w.keyHolders() {
		if holder.role != "" {
			w.h.Process(holder.role).Kill()
		}
		check := func() bool { return holder.check && w.works(keyHolder{line: append(holder.line, "-check")}) }
		if !w.works(holder) || holder.check && !check() {
			w.t.Fatalf("%q does not work with what there is, so that nothing is proved", holder.line)
		}
		for _, key := range holder.keys {
			before := effects
			for _, mode := range []os.FileMode{0o604, 0o622, 0o666}[:w.size(3, 1)] {
				trials += 2
				w.must(os.Chmod(key, mode))
				if w.works(holder) {
					w.t.Logf("%s works with %s of mode %o", holder.line[0], key, mode)
					effects++
				}
				if check() {
					w.t.Logf("%s -check passes %s of mode %o", holder.line[0], key, mode)
					effects++
				}
				w.must(os.Chmod(key, 0o600))
				if w.caught(effects) {
					break
				}
			}
			if w.weak && effects == before {
				w.t.Errorf("%s refuses %s without its guard too", holder.line[0], key)
			}
		}
		if holder.role != "" {
			w.h.StartProcess(holder.role)
		}
	}
	w.awaitAll()
	return trials, effects
}

// works starts a program, in a control one that takes any key, and reports whether it went to work. It is over when works returns.
func (w *world) works(holder keyHolder) bool {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "log")
	log, err := os.Create(path)
	w.must(err)
	defer log.Close()
	cmd := w.h.Command(append([]string{filepath.Join(w.h.Bin, holder.line[0])}, holder.line[1:]...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if w.weak {
		cmd.Env = append(cmd.Env, "DURWARD_WEAKEN=key-mode")
	}
	w.must(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	said := func() bool {
		b, err := os.ReadFile(path)
		w.must(err)
		return holder.says != "" && strings.Contains(string(b), holder.says)
	}
	for limit := time.Now().Add(harness.Patience); ; time.Sleep(5 * time.Millisecond) { // until it has decided whether it works
		select {
		case err := <-ended:
			return said() || holder.says == "" && err == nil
		default:
		}
		if works := said() || holder.role != "" && w.h.Healthy(holder.role); works || time.Now().After(limit) {
			_ = cmd.Process.Kill() // ended already is as good
			<-ended
			return works
		}
	}
}
