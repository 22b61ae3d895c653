package doctor

import (
	"path/filepath"
	"strings"
	"testing"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/platformtest/testfile"
)

func TestServers(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Operator: installdir.Config{Clients: filepath.Join(dir, "clients.yaml")}}
	if got := servers(t.Context(), cfg); got != nil {
		t.Errorf("without servers: %v", got)
	}
	testfile.Write(t, filepath.Join(dir, "servers.yaml"), "servers: [{id: notes, program: {path: /usr/bin/notes}}]\n")
	if got := servers(t.Context(), cfg); len(got) != 1 || got[0].Level != Warning {
		t.Errorf("without egress: %v", got)
	}
	cfg.Operator.Egress = &config.Peer{}
	for name, c := range map[string]struct {
		said *egressv1.ListServersResponse
		want string
	}{
		"no answer":     {nil, ""},
		"as it was":     {&egressv1.ListServersResponse{Servers: []*egressv1.ServerStatus{{Id: "notes", State: "running"}}}, "1 is in force"},
		"not in force":  {&egressv1.ListServersResponse{Problems: []string{"notes: its tools were never accepted"}}, "never accepted"},
		"changed":       {&egressv1.ListServersResponse{Servers: []*egressv1.ServerStatus{{Id: "notes", Changed: []string{"add"}}}}, "not as it was accepted: add"},
		"gone":          {&egressv1.ListServersResponse{Servers: []*egressv1.ServerStatus{{Id: "notes", Absent: []string{"add"}}}}, "not as it was accepted: add"},
		"given up":      {&egressv1.ListServersResponse{Servers: []*egressv1.ServerStatus{{Id: "notes", State: "stopped", Why: "it ended five times"}}}, "it ended five times"},
		"unconfined":    {&egressv1.ListServersResponse{Servers: []*egressv1.ServerStatus{{Id: "notes", Unconfined: true}}}, "has no sandbox"},
		"for two alike": {&egressv1.ListServersResponse{Servers: []*egressv1.ServerStatus{{Id: "notes", Changed: []string{"add"}}, {Id: "notes", Changed: []string{"add"}}}}, "add"},
	} {
		cfg.Host.Servers = c.said
		got := servers(t.Context(), cfg)
		switch {
		case c.want == "":
			if got != nil {
				t.Errorf("%s: %v", name, got)
			}
		case len(got) != 1 || !strings.Contains(got[0].Text, c.want) || (got[0].Level == Good) != (name == "as it was"):
			t.Errorf("%s: %v", name, got)
		}
	}
}
