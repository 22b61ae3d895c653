package egress

import (
	"cmp"
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/suspicion"
)

// reports are made of the connections that the audit log has (CFG-7). None holds a path, a query, a header or a body.
var reports = []struct {
	name, short, long string
	make              func(rows []connection, version string) any
}{
	{"csp", "A Content-Security-Policy of the origins that answered", `Writes a Content-Security-Policy that lets a page reach the origins that answered agents' requests, and nothing else.`,
		func(rows []connection, _ string) any { return policy(rows) }},
	{"har", "An HTTP archive of the requests", `Writes an HTTP archive (HAR 1.2) of the requests, without paths, headers and bodies: an origin stands in the place of each URL.`,
		func(rows []connection, version string) any { return archive(rows, version) }},
	{"sarif", "What was refused or looks wrong, as SARIF", `Writes what was refused, by which rule, and origins whose names look wrong, as SARIF 2.1.0, which code-scanning programs read.`,
		func(rows []connection, version string) any { return findings(rows, version) }},
}

func (a *app) reportCommands() (commands []*cobra.Command) {
	for _, r := range reports {
		var f logFilter
		cmd := &cobra.Command{
			Use: r.name, Short: r.short, Long: r.long, Example: "  durward egress " + r.name + " --since 24h",
			Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
			RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
				rows, err := a.connections(ctx, s, f)
				if err != nil {
					return err
				}
				report := r.make(rows, a.Streams.Version)
				if text, is := report.(string); is {
					return a.Show(map[string]any{r.name: text}, func() { a.Out.Printf("%s\n", text) })
				}
				raw, err := json.MarshalIndent(report, "", "  ")
				if err != nil {
					return err
				}
				return a.Show(report, func() { a.Out.Printf("%s\n", raw) })
			}),
		}
		f.flags(cmd)
		commands = append(commands, cmd)
	}
	return commands
}

// policy is a Content-Security-Policy.
func policy(rows []connection) string {
	var origins []string
	for _, c := range rows {
		if c.Verdict == answered && c.Origin != "" {
			origins = append(origins, c.Origin)
		}
	}
	slices.Sort(origins)
	allowed := cmp.Or(strings.Join(slices.Compact(origins), " "), "'none'")
	return "default-src 'none'; connect-src " + allowed + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// object is one of JSON's.
type object = map[string]any

// archive is HAR 1.2: http://www.softwareishard.com/blog/har-12-spec/.
func archive(rows []connection, version string) object {
	entries := []object{}
	for _, c := range slices.Backward(rows) {
		if c.Address == "" {
			continue // nothing was dialled
		}
		host, _, _ := net.SplitHostPort(c.Address)
		entries = append(entries, object{
			"startedDateTime": c.Time.UTC().Format(time.RFC3339Nano), "time": 0, "cache": object{}, "serverIPAddress": host,
			"timings": object{"send": 0, "wait": 0, "receive": 0},
			"request": object{
				"method": c.Method, "url": c.Origin + "/", "httpVersion": "HTTP/1.1", "cookies": []any{}, "headers": []any{}, "queryString": []any{},
				"headersSize": -1, "bodySize": c.Sent,
			},
			"response": object{
				"status": c.Status, "statusText": "", "httpVersion": "HTTP/1.1", "cookies": []any{}, "headers": []any{}, "redirectURL": "",
				"content": object{"size": c.Received, "mimeType": ""}, "headersSize": -1, "bodySize": c.Received,
			},
		})
	}
	return object{"log": object{"version": "1.2", "creator": object{"name": "durward", "version": version}, "entries": entries}}
}

// findings are SARIF 2.1.0: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
func findings(rows []connection, version string) object {
	results, rules, flagged := []object{}, []object{}, map[string]bool{}
	add := func(rule, level, text, origin string) {
		if !slices.ContainsFunc(rules, func(r object) bool { return r["id"] == rule }) {
			rules = append(rules, object{"id": rule, "shortDescription": object{"text": rule}})
		}
		results = append(results, object{
			"ruleId": rule, "level": level, "message": object{"text": text},
			"locations": []object{{"physicalLocation": object{"artifactLocation": object{"uri": cmp.Or(origin, "unknown:")}}}},
		})
	}
	levels := map[suspicion.Severity]string{suspicion.Low: "note", suspicion.Medium: "warning", suspicion.High: "error"}
	for _, c := range slices.Backward(rows) {
		if c.Verdict == refused || c.Verdict == denied {
			add(cmp.Or(c.Rule, c.Verdict), "warning", c.Principal+"'s "+c.Tool+" was "+c.Verdict+": "+cmp.Or(c.Rule, "no rule is named"), c.Origin)
		}
		host, _, err := net.SplitHostPort(c.Destination)
		if err != nil || flagged[host] {
			continue
		}
		flagged[host] = true
		for _, f := range suspicion.Of(host) {
			add("suspicious", levels[f.Severity], host+": "+f.Why, c.Origin)
		}
	}
	return object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{"tool": object{"driver": object{"name": "durward", "version": version, "rules": rules}}, "results": results}},
	}
}
