package admin

import (
	"strings"
	"testing"
)

func TestChildEnvironment(t *testing.T) {
	env := childEnvironment(func(name string) string {
		return map[string]string{"PATH": "/bin", "HOME": "/home/me", "SSH_AUTH_SOCK": "/tmp/agent", "OPENAI_API_KEY": "secret", "LD_PRELOAD": "x"}[name]
	})
	if got := strings.Join(env, " "); got != "PATH=/bin HOME=/home/me" {
		t.Errorf("children inherit %s", got)
	}
}
