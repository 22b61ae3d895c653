package containerpolicy

import (
	"encoding/json"
	"slices"
	"strings"

	"durward.internal/services/platform/pattern"
)

var (
	profileName  = pattern.New(`\A[A-Za-z0-9][A-Za-z0-9._/\-]{0,127}\z`)
	selinuxLevel = pattern.New(`\A[A-Za-z0-9:.,\-]{1,128}\z`)
	// The SELinux types of Pod Security's baseline: each is a container's, none is the host's.
	selinuxTypes = []string{"container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
	// What Pod Security calls safe: namespaced, bounded, and of no use against the host.
	safeSysctls = []string{
		"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies",
		"net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
		"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
		"net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat",
	}
)

// capabilitiesAdded: none, but the one that Pod Security's restricted level lets back in. It opens low ports inside the
// container's own network, and nothing of the host; containers that are made here do not have it.
func capabilitiesAdded(k *check) string {
	for _, c := range k.Host.CapAdd {
		if !mayBeAdded(c) {
			return safe(c) + " is not for containers"
		}
	}
	return ""
}

func mayBeAdded(capability string) bool {
	return strings.TrimPrefix(capability, "CAP_") == "NET_BIND_SERVICE"
}

// securityOptions must forbid new privileges, and may name confinements but never lift one.
func securityOptions(k *check) string {
	forbidden := false
	for _, option := range k.Host.SecurityOpt {
		switch option {
		case "no-new-privileges", "no-new-privileges=true", "no-new-privileges:true":
			forbidden = true
			continue
		}
		name, value, _ := strings.Cut(option, "=")
		good := false
		switch name {
		case "apparmor":
			good = profileName().MatchString(value) && value != "unconfined"
		case "seccomp":
			good = value == "builtin" || confines(value)
		case "label":
			kind, what, _ := strings.Cut(value, ":")
			good = kind == "type" && slices.Contains(selinuxTypes, what) || kind == "level" && selinuxLevel().MatchString(what)
		}
		if !good {
			return safe(option) + " would loosen the container"
		}
	}
	return unless(forbidden, "must say no-new-privileges")
}

// maxProfile bounds a seccomp profile; Docker's own has 14 kB.
const maxProfile = 256 << 10

// hostCalls are system calls that Docker's own profile keeps from a container without capabilities. A profile that allows one
// is wider than none being named.
var hostCalls = []string{
	"acct", "add_key", "bpf", "chroot", "clock_settime", "clock_settime64", "clone3", "create_module", "delete_module",
	"fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms", "get_mempolicy", "init_module",
	"io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl",
	"lookup_dcookie", "lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr", "mbind",
	"mount", "mount_setattr", "move_mount", "move_pages", "nfsservctl", "open_by_handle_at",
	"open_tree", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise", "query_module", "quotactl", "quotactl_fd",
	"reboot", "request_key", "set_mempolicy", "set_mempolicy_home_node", "setdomainname", "sethostname", "setns", "settimeofday",
	"stime", "swapoff", "swapon", "sysfs", "syslog", "umount", "umount2", "unshare", "uselib", "userfaultfd", "ustat", "vhangup",
	"vm86", "vm86old", "_sysctl",
}

// allowing are the actions that let a call through.
var allowing = []string{"SCMP_ACT_ALLOW", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_NOTIFY"}

// confines reports whether text is a seccomp profile that denies by default and lets nothing through that reaches the host. A
// profile's conditions are not weighed: naming a call among those allowed is enough to be refused, unless the profile asks
// for a capability that no container here can have.
func confines(text string) bool {
	if len(text) > maxProfile {
		return false
	}
	var profile struct {
		DefaultAction string `json:"defaultAction"`
		Syscalls      []struct {
			Name     string   `json:"name"`
			Names    []string `json:"names"`
			Action   string   `json:"action"`
			Includes struct {
				Caps []string `json:"caps"`
			} `json:"includes"`
		} `json:"syscalls"`
	}
	if json.Unmarshal([]byte(text), &profile) != nil {
		return false
	}
	switch profile.DefaultAction {
	case "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_TRAP":
	default:
		return false
	}
	for _, call := range profile.Syscalls {
		never := slices.ContainsFunc(call.Includes.Caps, func(c string) bool { return !mayBeAdded(c) })
		if never || !slices.Contains(allowing, call.Action) {
			continue
		}
		for _, name := range append(call.Names, call.Name) {
			if slices.Contains(hostCalls, name) {
				return false
			}
		}
	}
	return true
}

func sysctls(k *check) string {
	for name := range k.Host.Sysctls {
		if !slices.Contains(safeSysctls, name) {
			return safe(name) + " is not among those that stay in the container"
		}
	}
	return ""
}
