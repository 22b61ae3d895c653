package process

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// command builds the child: argument vector, environment, session, user. Only in development may that be the executor's own.
func command(s *catalog.Service, development bool) (*exec.Cmd, error) {
	self, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	as, err := runsAs(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrNotPermitted, err)
	}
	if (as.Uid == self.Uid || as.Uid == "0") && !development {
		return nil, fmt.Errorf("%w: it would be the executor's own, or root", driver.ErrNotPermitted)
	}
	cmd := &exec.Cmd{
		Args:        s.Argv,
		Env:         environment(as, s.Environment),
		Dir:         workingDir(s, as),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if as.Uid != self.Uid {
		if cmd.SysProcAttr.Credential, err = credential(as); err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrNotPermitted, err)
		}
	}
	return cmd, nil
}

// runsAs is the user that the program runs as.
func runsAs(s *catalog.Service) (*user.User, error) {
	if s.RunAs == "" {
		return user.Current()
	}
	return user.Lookup(s.RunAs)
}

// workingDir is where the program runs.
func workingDir(s *catalog.Service, as *user.User) string {
	if s.WorkingDir != "" {
		return s.WorkingDir
	}
	if info, err := os.Stat(as.HomeDir); err == nil && info.IsDir() {
		return as.HomeDir
	}
	return "/"
}

// environment is ENV-1's: six variables, and what the entry names.
func environment(as *user.User, named map[string]string) []string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": as.HomeDir,
		"TERM": "dumb",
		"LANG": "C.UTF-8",
		"USER": as.Username,
	}
	if tz := os.Getenv("TZ"); tz != "" {
		env["TZ"] = tz
	}
	maps.Copy(env, named)
	out := make([]string, 0, len(env))
	for key, value := range env {
		out = append(out, key+"="+value)
	}
	return out
}

func credential(as *user.User) (*syscall.Credential, error) {
	uid, err := strconv.ParseUint(as.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(as.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	ids, err := as.GroupIds()
	if err != nil {
		return nil, err
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	for _, id := range ids {
		group, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, err
		}
		c.Groups = append(c.Groups, uint32(group))
	}
	return c, nil
}
