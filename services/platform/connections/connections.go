// Package connections is what became of requests to other hosts, and the reports that programs read of it (CFG-7): a
// Content-Security-Policy, an HTTP archive, SARIF. Egress makes them of a session's own requests, operators' programs of the audit log.
//
// The words in a Connection are cleaned by whoever fills it in; a report quotes them and adds none of a stranger's.
package connections

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/suspicion"
)

// Verdicts on connections.
const (
	Answered = "answered"
	Refused  = "refused"
	Denied   = "denied"
	Failed   = "failed"
	// Open is that of a server's connection which has not ended yet, and Ended of one that egress did not outlive, so that no bytes are known.
	Open  = "open"
	Ended = "ended"
)

// ServersTool is the tool of records of what other people's servers reach by themselves.
const ServersTool = "connect"

// Connection is one request to another host.
type Connection struct {
	// Index is its record's in the audit log; 0 where it is not from there.
	Index     uint64    `json:"index"`
	Time      time.Time `json:"time"`
	Principal string    `json:"principal"`
	Tool      string    `json:"tool"`
	Method    string    `json:"method"`
	// Destination is the host and port that were asked for.
	Destination string `json:"destination"`
	// Origin is the destination as the call's URL begins; Redirected is the origin that answered, where it is another.
	Origin     string `json:"origin"`
	Redirected string `json:"redirected"`
	// Address is what was dialled for the answer; empty where there was none.
	Address string `json:"address"`
	// Sent and Received count bytes of bodies, and of what other people's servers reach those of the connections.
	Sent     int `json:"sent"`
	Received int `json:"received"`
	// Status is the server's; 0 where it gave none.
	Status  int    `json:"status"`
	Verdict string `json:"verdict"`
	Rule    string `json:"rule"`
}

// details are the words of a record that hold a connection, beside those that every call's record has.
func (c *Connection) details() map[string]any {
	return map[string]any{
		"destination": &c.Destination, "address": &c.Address, "redirected": &c.Redirected, "sent": &c.Sent, "bytes": &c.Received, "status": &c.Status, "rule": &c.Rule,
	}
}

// Details are what a record says of a connection; what is not known is left out.
func (c *Connection) Details() map[string]string {
	out := map[string]string{}
	for name, at := range c.details() {
		switch value := at.(type) {
		case *string:
			if *value != "" {
				out[name] = *value
			}
		case *int:
			if *value != 0 {
				out[name] = strconv.Itoa(*value)
			}
		}
	}
	return out
}

// SetDetails reads a record's Details. Its words are cleaned: a stranger chose some of them.
func (c *Connection) SetDetails(details map[string]string) {
	for name, at := range c.details() {
		switch value := at.(type) {
		case *string:
			*value = clean.Line(details[name], 300)
		case *int:
			*value = 0
			if n, err := strconv.Atoi(details[name]); err == nil {
				*value = n
			}
		}
	}
}

// Formats are those that Report knows.
var Formats = []string{"csp", "har", "sarif"}

// Options are what a report takes beside the connections.
type Options struct {
	// Version is the program's that makes it.
	Version string
	// From is the least severity of what SARIF says about names; None: all of it.
	From suspicion.Severity
}

// Report makes a report of connections, the newest of which comes first: a text for "csp", else an object of JSON. None holds a path, a
// query, a header or a body.
func Report(format string, rows []Connection, o Options) (any, error) {
	switch format {
	case "csp":
		return policy(rows), nil
	case "har":
		return archive(rows, o.Version), nil
	case "sarif":
		return findings(rows, o), nil
	default:
		return nil, fmt.Errorf("%q is none of %s", format, strings.Join(Formats, ", "))
	}
}

// Reached reports whether somebody was spoken to.
func (c Connection) Reached() bool {
	return c.Verdict == Answered || c.Verdict == Open || c.Verdict == Ended
}

// policy is a Content-Security-Policy.
func policy(rows []Connection) string {
	var origins []string
	for _, c := range rows {
		if c.Reached() && c.Origin != "" {
			origins = append(origins, c.Origin)
			if c.Redirected != "" {
				origins = append(origins, c.Redirected)
			}
		}
	}
	slices.Sort(origins)
	allowed := cmp.Or(strings.Join(slices.Compact(origins), " "), "'none'")
	return "default-src 'none'; connect-src " + allowed + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// object is one of JSON's.
type object = map[string]any

// archive is HAR 1.2: http://www.softwareishard.com/blog/har-12-spec/.
func archive(rows []Connection, version string) object {
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
				"method": c.Method, "url": cmp.Or(c.Redirected, c.Origin) + "/", "httpVersion": "HTTP/1.1", "cookies": []any{}, "headers": []any{}, "queryString": []any{},
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
func findings(rows []Connection, o Options) object {
	results, rules, known, flagged := []object{}, []object{}, map[string]bool{}, map[string]bool{}
	add := func(rule, level, text, origin string) {
		if !known[rule] {
			known[rule] = true
			rules = append(rules, object{"id": rule, "shortDescription": object{"text": rule}})
		}
		results = append(results, object{
			"ruleId": rule, "level": level, "message": object{"text": text},
			"locations": []object{{"physicalLocation": object{"artifactLocation": object{"uri": cmp.Or(origin, "unknown:")}}}},
		})
	}
	levels := map[suspicion.Severity]string{suspicion.Low: "note", suspicion.Medium: "warning", suspicion.High: "error"}
	for _, c := range slices.Backward(rows) {
		if c.Verdict == Refused || c.Verdict == Denied {
			add(cmp.Or(c.Rule, c.Verdict), "warning", c.Principal+"'s "+c.Tool+" was "+c.Verdict+": "+cmp.Or(c.Rule, "no rule is named"), c.Origin)
		}
		host, _, err := net.SplitHostPort(c.Destination)
		if err != nil || flagged[host] {
			continue
		}
		flagged[host] = true
		for _, f := range suspicion.Of(host) {
			if f.Severity < o.From {
				continue
			}
			add("suspicious", levels[f.Severity], host+": "+f.Why, c.Origin)
		}
	}
	return object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{"tool": object{"driver": object{"name": "durward", "version": o.Version, "rules": rules}}, "results": results}},
	}
}
