package doctor

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/supervisor"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/health"
	"durward.internal/services/platform/lifelog"
)

// count is how many processes there are.
func count(cfg Config) string { return map[int]string{4: "four", 5: "five"}[len(cfg.Operator.Roles())] }

func processes(ctx context.Context, cfg Config) []Finding {
	var down, unwell, hang, strangers []string
	var why []Finding
	for _, role := range cfg.Operator.Roles() {
		ok, h := health.Healthy(ctx, cfg.HTTP, cfg.Operator.Health.Of(role), role)
		switch {
		case ok:
		case h.Service != "" && h.Service != role:
			strangers = append(strangers, role+" ("+cfg.Operator.Health.Of(role)+")")
		case h.Service == role:
			unwell = append(unwell, role)
		case (cfg.Installed != nil || cfg.Taken == nil) && cli.Taken(ctx, cfg.Operator.Health.Of(role)): // else it is another program's
			hang = append(hang, role)
		default:
			down = append(down, role)
			why = append(why, whyDown(cfg, role)...)
		}
	}
	var out []Finding
	if len(strangers) > 0 {
		out = append(out, Finding{Bad, "ports", "another program answers on the port of " + strings.Join(strangers, ", "), "Stop it, or change the ports in config/."})
	}
	for _, group := range []struct {
		text  string
		roles []string
		do    string
	}{
		{"no answer from ", down, "durward status; " + cli.Start(cfg.Home)},
		{"not well, as it says itself: ", unwell, "durward status says why"},
		{"its port is taken, and it answers nothing: ", hang, "durward status says what to do"},
	} {
		if len(group.roles) > 0 {
			out = append(out, Finding{Warning, "processes", group.text + strings.Join(group.roles, ", "), group.do})
		}
	}
	out = append(out, why...)
	if len(out) == 0 {
		out = append(out, good("processes", "all %s answer that they are well, on their own ports", count(cfg)))
	}
	return out
}

// itsLog says where a process tells why something is not well.
func (cfg Config) itsLog(role string) string {
	return "Its log says why: " + cli.ItsLog(cfg.Home, role)
}

// whyDown is what keeps a process from running that durward up runs: its log's last word, or a port that is another's.
func whyDown(cfg Config, role string) (out []Finding) {
	if cfg.Installed != nil {
		return nil // units: its journal says so
	}
	if said := failure(role, supervisor.Tail(cfg.Home.Log(role), 1000, 0)); said != "" {
		out = append(out, Finding{Bad, role, clean.Line("it stopped: "+said, 1000), "Mend that; then: " + cli.Start(cfg.Home)})
	}
	if cfg.Taken != nil {
		if err := cfg.Taken(role); err != nil {
			out = append(out, Finding{Bad, "ports", err.Error(), "Stop that program, or change the port in " + cli.ShellWord(cfg.Home.Config(role))})
		}
	}
	return out
}

// failure is why a process could not begin or go on, by the end of its log; "": it ended well, or the log does not say.
func failure(role, log string) string {
	for _, line := range slices.Backward(strings.Split(log, "\n")) {
		var entry struct{ Msg, Error string }
		switch err := json.Unmarshal([]byte(line), &entry); {
		case err != nil && strings.HasPrefix(line, role+": "):
			return "" // it did not begin, for its configuration, of which another finding tells
		case err != nil: // no line of ours
		case entry.Msg == lifelog.Starting:
			return ""
		case entry.Msg == lifelog.Failed:
			return entry.Error
		}
	}
	return ""
}
