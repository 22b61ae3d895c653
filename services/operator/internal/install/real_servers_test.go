//go:build real

package install_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"

	"durward.internal/services/platform/procfs"
)

// lookServer is another's MCP server: its tool says what it sees of the host, and each process leaves a file in the folder that it may write.
const lookServer = `#!/bin/sh
echo >"/srv/look/$(date +%s%N)"
while read -r line; do
	id=${line#*\"id\":}
	id=${id%%,*}
	case $line in
	*'"method":"initialize"'*) says='"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"look","version":"1"}}' ;;
	*'"method":"tools/list"'*) says='"result":{"tools":[{"name":"look","description":"Says what it sees.","inputSchema":{"type":"object"}}]}' ;;
	*'"method":"tools/call"'*)
		seen="user $(id -u) sees"
		for path in /home /home/alice /root /etc/durward /etc/durward/clients.yaml /var/lib/durward /run/durward /run/systemd /srv /srv/look; do
			ls "$path" >/dev/null 2>&1 && seen="$seen $path"
		done
		says='"result":{"content":[{"type":"text","text":"'"$seen."'"}]}'
		;;
	*'"id":'*) says='"error":{"code":-32601,"message":"no such method"}' ;;
	*) continue ;;
	esac
	printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$says"
done
`

// firstGroups is what root gives the launcher where control groups are of version 1, of which systemd delegates none to a user.
const firstGroups = `[Service]
ExecStartPre=+/bin/sh -ec "for c in memory pids cpu; do own=/sys/fs/cgroup/$$c$$(sed -n s/^[0-9]*:$$c://p /proc/self/cgroup); chown durward-launcher $$own $$own/tasks; done"
`

// servers adds another's MCP server: the launcher runs it for an agent, as its own user, in a sandbox and within limits, until a human ends
// it, or egress ends.
func (h *installed) servers() {
	sudo := []string{"SUDO_USER=alice", "SSH_AUTH_SOCK=/home/alice/.ssh/agent"}
	change := func(argv ...string) {
		h.Helper()
		if out, code := h.as("root", sudo, append([]string{"durward"}, argv...)...); code != 0 {
			h.Fatalf("%q ended with %d:\n%s", argv, code, out)
		}
	}
	h.must(os.WriteFile("/usr/local/bin/look", []byte(lookServer), 0o755))
	h.root("install", "-d", "-m", "1777", "/srv/look")
	change("server", "add", "program", "/usr/local/bin/look", "--allow-write", "/srv/look", "--read", "look", "--yes")
	u, err := user.Lookup("durward-launcher")
	h.must(err)
	left, err := os.ReadDir("/srv/look")
	h.must(err)
	for _, file := range left {
		if info, err := file.Info(); err != nil || fmt.Sprint(info.Sys().(*syscall.Stat_t).Uid) != u.Uid {
			h.Errorf("while root added it, the server ran as another user than the launcher's: %v, %v", info, err)
		}
	}
	if len(left) != 1 {
		h.Errorf("the server ran %d times while it was added", len(left))
	}

	change("client", "add", "hand", "--bearer", "--yes") // on the channel cli: others get no program of this host
	a := h.connected("hand")
	says := func(want string) {
		h.Helper()
		h.eventually("the server is called", func() error {
			if text, err := a.call(h.Context(), "look__look", map[string]any{}); err != nil || !strings.Contains(text, want) {
				return fmt.Errorf("%w: %s", err, text)
			}
			return nil
		})
	}
	const sees = "user 1000 sees /srv /srv/look."
	second := true
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		second = false
		says("the server look cannot be called: `durward server status` says why")
		if out := h.root("durward", "server", "status"); !strings.Contains(out, "its memory and processes cannot be bounded") {
			h.Errorf("server status says\n%s", out)
		}
		const folder = "/etc/systemd/system/durward-launcher.service.d"
		h.must(os.MkdirAll(folder, 0o755))
		h.must(os.WriteFile(folder+"/groups.conf", []byte(firstGroups), 0o644))
		h.root("systemctl", "daemon-reload")
		h.root("systemctl", "restart", "durward-launcher")
		h.root("durward", "server", "restart", "look")
	}
	says(sees)
	first := h.confined(u.Uid, second)

	if out := h.root("durward", "server", "restart", "look"); !strings.Contains(out, "1 ended") {
		h.Errorf("server restart says %s", out)
	}
	h.ended(first)
	says(sees)
	again := h.confined(u.Uid, second)
	h.root("kill", "-KILL", h.pid("egress"))
	h.ended(again)
	h.eventually("egress is back", func() error { return a.open(h.Context()) })
	says(sees)
	again = h.confined(u.Uid, second)
	h.root("systemctl", "stop", "durward-egress")
	h.ended(again)
	h.root("systemctl", "start", "durward-egress")
	says(sees)
	again = h.confined(u.Uid, second)
	change("server", "remove", "look", "--yes")
	h.ended(again)
	says("no such tool")
}

// confined looks at the process of the server from outside, and returns its number.
func (h *installed) confined(uid string, second bool) string {
	h.Helper()
	pid := strings.TrimSpace(h.root("pgrep", "-u", uid, "-x", "look"))
	status, err := os.ReadFile("/proc/" + pid + "/status")
	h.must(err)
	for _, line := range []string{fmt.Sprintf("Uid:\t%s\t%s\t%s\t%s\n", uid, uid, uid, uid), "NSpid:\t" + pid + "\t2\n", "NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "Seccomp:\t2\n"} {
		if !strings.Contains(string(status), line) {
			h.Errorf("the server has not %q:\n%s", line, status)
		}
	}
	_, parent, _ := strings.Cut(string(status), "PPid:\t")
	parent, _, _ = strings.Cut(parent, "\n")
	if exe, err := os.Readlink("/proc/" + parent + "/exe"); err != nil || exe != "/usr/bin/bwrap" {
		h.Errorf("the server's parent is %s, %v", exe, err)
	}
	self, err := os.ReadFile("/proc/" + pid + "/cgroup")
	h.must(err)
	groups := maps.Collect(procfs.CGroups(string(self)))
	limits := map[string][3]string{ // of version 1, of version 2, and what the entry says
		"memory": {"memory.limit_in_bytes", "memory.max", "536870912"}, "pids": {"pids.max", "pids.max", "88"}, "cpu": {"cpu.cfs_quota_us", "cpu.max", "100000"},
	}
	for controller, limit := range limits {
		file := filepath.Join("/sys/fs/cgroup", controller, groups[controller], limit[0])
		if second {
			file = filepath.Join("/sys/fs/cgroup", groups[""], limit[1])
		}
		if raw, err := os.ReadFile(file); err != nil || !strings.Contains(file, "/service-look-") || strings.Fields(string(raw))[0] != limit[2] {
			h.Errorf("%s says %q, %v", file, raw, err)
		}
	}
	h.Logf("the server's control groups are of version 2: %t", second)
	return pid
}

// ended waits until a process is gone.
func (h *installed) ended(pid string) {
	h.Helper()
	h.eventually("the server's process ends", func() error {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			return errors.New("it goes on")
		}
		return nil
	})
}
