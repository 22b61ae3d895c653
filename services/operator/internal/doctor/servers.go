package doctor

import (
	"context"
	"fmt"
	"strings"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/clean"
)

// servers: of other people's MCP servers each is in force, stands in a sandbox, and has the tools that were accepted.
func servers(_ context.Context, cfg Config) []Finding {
	if len(cfg.Operator.Servers()) == 0 {
		return nil
	}
	if cfg.Operator.Egress == nil {
		return []Finding{{Warning, "servers", "servers.yaml has servers, and there is no egress that runs them", cli.AddEgress(cfg.Home)}}
	}
	if cfg.Host.Servers == nil {
		return nil // what is told of egress says why
	}
	var out []Finding
	for _, problem := range cfg.Host.Servers.GetProblems() {
		out = append(out, Finding{Warning, "servers", clean.Line(problem, 300), "See: durward server list"})
	}
	told := map[string]bool{}
	tell := func(id, text, next string) {
		if !told[id+text] {
			told[id+text] = true
			out = append(out, Finding{Warning, "servers", "the server " + id + " " + text, next})
		}
	}
	for _, s := range cfg.Host.Servers.GetServers() {
		if changed := append(append([]string{}, s.GetChanged()...), s.GetAbsent()...); len(changed) > 0 {
			tell(s.GetId(), clean.Line(fmt.Sprintf("is not as it was accepted: %s", strings.Join(changed, ", ")), 200), "Look at the difference, and accept it if it is well: durward server diff "+s.GetId())
		}
		if s.GetState() == "stopped" {
			tell(s.GetId(), clean.Line("does not run: "+s.GetWhy(), 300), "See: durward server logs "+s.GetId()+"; then: durward server restart "+s.GetId())
		}
		if s.GetUnconfined() {
			tell(s.GetId(), "has no sandbox", "It can do what this user can. Leave sandbox.none away in servers.yaml.")
		}
	}
	if len(out) == 0 {
		out = append(out, good("servers", "%s in force, each in its sandbox", clean.Count(len(cfg.Operator.Servers()), "is", "are")))
	}
	return out
}
