package servers

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/platform/downstream"
)

// item writes an entry as servers.yaml has it. What is empty or a default is left out.
func item(e downstream.Entry) string {
	var b strings.Builder
	line := func(depth int, format string, args ...any) {
		fmt.Fprintf(&b, "%s%s\n", strings.Repeat("  ", depth), fmt.Sprintf(format, args...))
	}
	text := func(depth int, key, value string) {
		if value != "" {
			line(depth, "%s: %s", key, edit.Text(value))
		}
	}
	list := func(depth int, key string, values []string) {
		if len(values) > 0 {
			line(depth, "%s: %s", key, edit.Texts(values))
		}
	}
	table := func(key string, values map[string]string) {
		if len(values) == 0 {
			return
		}
		line(0, "%s:", key)
		for _, name := range slices.Sorted(maps.Keys(values)) {
			line(1, "%s: %s", edit.Text(name), edit.Text(values[name]))
		}
	}
	text(0, "id", e.ID)
	switch {
	case e.NPM != nil:
		line(0, "npm:")
		text(1, "package", e.NPM.Name)
		text(1, "version", e.NPM.Version)
		text(1, "bin", e.NPM.Bin)
		list(1, "args", e.NPM.Args)
	case e.Program != nil:
		line(0, "program:")
		text(1, "path", e.Program.Path)
		list(1, "args", e.Program.Args)
	}
	text(0, "url", e.URL)
	text(0, "bearer", e.Bearer)
	box(line, list, e.Sandbox)
	table("env", e.Env)
	table("credentials", e.Credentials)
	for _, offers := range []struct {
		key string
		is  bool
	}{{"resources", e.Resources}, {"prompts", e.Prompts}, {"images", e.Images}, {"elicitation", e.Elicitation}} {
		if offers.is {
			line(0, "%s: true", offers.key)
		}
	}
	read, destructive := tools(e, optionsv1.Tier_TIER_READ), tools(e, optionsv1.Tier_TIER_DESTRUCTIVE)
	if len(e.Allow)+len(read)+len(destructive) > 0 {
		line(0, "tools:")
		list(1, "allow", e.Allow)
		list(1, "read", read)
		list(1, "destructive", destructive)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func box(line func(int, string, ...any), list func(int, string, []string), s downstream.Sandbox) {
	bounds := []struct {
		key  string
		text string
		is   bool
	}{
		{"memory_mib", strconv.Itoa(s.MemoryMiB), s.MemoryMiB != 0 && s.MemoryMiB != 512},
		{"cpu", strconv.FormatFloat(s.CPU, 'f', -1, 64), s.CPU != 0 && s.CPU != 1},
		{"processes", strconv.Itoa(s.Processes), s.Processes != 0 && s.Processes != 64},
		{"none", "true", s.None},
	}
	any := len(s.Read)+len(s.Write)+len(s.Domains) > 0
	for _, bound := range bounds {
		any = any || bound.is
	}
	if !any {
		return
	}
	line(0, "sandbox:")
	if len(s.Read)+len(s.Write) > 0 {
		line(1, "filesystem:")
		list(2, "allow_read", s.Read)
		list(2, "allow_write", s.Write)
	}
	if len(s.Domains) > 0 {
		line(1, "network:")
		list(2, "allowed_domains", s.Domains)
	}
	for _, bound := range bounds {
		if bound.is {
			line(1, "%s: %s", bound.key, bound.text)
		}
	}
}

func tools(e downstream.Entry, tier optionsv1.Tier) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(e.Tiers)) {
		if e.Tiers[name] == tier {
			names = append(names, name)
		}
	}
	return names
}
