package mcpserver_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// generator makes messages that are calls, or nearly: each part is sometimes written otherwise than a client would.
type generator struct{ *rand.Rand }

// seldom is the odds of each oddity: with about thirty places for one, near half of the frames stay calls.
func (g generator) seldom() bool { return g.IntN(50) == 0 }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

// member is one key and value of an object, as text.
type member struct{ key, value string }

func (g generator) frame(e era) []byte {
	tool := pick(g, "gpu_status", "list_services", "service_info", "start_service", "stop_service", "wait_operation")
	if g.seldom() {
		tool = pick(g, "format_disk", "", "GPU_STATUS", "gpu_status ", "gpu_status\x00", "start_service\n", strings.Repeat("x", 129))
	}
	params := []member{{"name", g.text(tool)}}
	if !g.seldom() || tool != "gpu_status" {
		params = append(params, member{"arguments", g.arguments(tool)})
	}
	if meta, present := g.meta(e); present {
		params = append(params, member{"_meta", meta})
	}
	out := g.object([]member{
		{"jsonrpc", g.text("2.0")},
		{"id", g.id()},
		{"method", g.text("tools/call")},
		{"params", g.object(params)},
	})
	switch {
	case g.seldom():
		out += pick(g, "{}", "x", "\x00", ",", out, "\n \t")
	case g.seldom():
		out = "[" + out + "]"
	case g.seldom():
		out = pick(g, "\ufeff", "\xff", " ", "\n") + out
	case g.seldom():
		at := g.IntN(len(out))
		out = out[:at] + pick(g, "", "\xc3", "\x00", "\"", "}") + out[at+1:]
	}
	return []byte(out)
}

func (g generator) arguments(tool string) string {
	var fields []member
	switch tool {
	case "service_info", "start_service", "stop_service":
		fields = append(fields, member{"service_id", g.value("demo-chat", "a", "A_b-9", strings.Repeat("z", 64), "demo-chat", "x1")})
	case "wait_operation":
		fields = append(fields, member{"operation_id", g.value("00112233445566778899aabbccddeeff", strings.Repeat("f", 32))})
	}
	if strings.HasPrefix(tool, "st") && g.IntN(3) == 0 {
		fields = append(fields, member{"reason", g.value("because", "größer als 5", "why \u202e not", "\U0001f600", "")})
	}
	if g.seldom() {
		return g.odd(0)
	}
	return g.object(fields)
}

// meta is the _meta of a call's parameters, if there is one.
func (g generator) meta(e era) (string, bool) {
	if g.seldom() {
		return g.odd(0), true
	}
	var says []member
	if g.IntN(3) == 0 {
		says = append(says, member{"progressToken", g.id()})
	}
	if e == modern {
		says = append(says, member{metaVersion, g.value(statelessRevision)}, member{metaCapabilities, "{}"})
	}
	return g.object(says), len(says) > 0
}

// object writes members in any order, with any white space, sometimes one of them twice or under a name that is nearly its
// own.
func (g generator) object(members []member) string {
	if g.seldom() && len(members) > 0 {
		again := pick(g, members...)
		if g.IntN(2) == 0 {
			again.value = g.odd(0)
		}
		members = append(members, again)
	}
	if g.seldom() {
		members = append(members, member{pick(g, "extra", "", "__proto__", "constructor", "Name", "service_id", "serviceId", "reason"), g.odd(0)})
	}
	g.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	var b strings.Builder
	b.WriteString(g.space() + "{" + g.space())
	for i, m := range members {
		if i > 0 {
			b.WriteString("," + g.space())
		}
		b.WriteString(g.text(g.name(m.key)) + g.space() + ":" + g.space() + m.value + g.space())
	}
	if g.seldom() {
		b.WriteString(pick(g, ",", ",}", "//", "/**/"))
	}
	b.WriteString("}")
	return b.String()
}

func (g generator) space() string {
	if g.IntN(8) > 0 {
		return ""
	}
	if g.IntN(300) == 0 {
		return pick(g, "\u00a0", "\v", "\f", "\x00")
	}
	return pick(g, " ", "\n", "\t", "\r\n", "   ")
}

// name varies a key: in case, by folding, by what is put behind it.
func (g generator) name(key string) string {
	if !g.seldom() || key == "" {
		return key
	}
	return pick(g, strings.ToUpper(key), strings.ToUpper(key[:1])+key[1:], key+"\x00", key+"\x00\x00", key+" ", " "+key,
		strings.ReplaceAll(key, "s", "\u017f"), strings.ReplaceAll(key, "k", "\u212a"), key+"\u200b", camel(key), key[:len(key)-1])
}

func camel(key string) string {
	parts := strings.Split(key, "_")
	for i := 1; i < len(parts); i++ {
		if parts[i] != "" {
			parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
		}
	}
	return strings.Join(parts, "")
}

// text writes a string as JSON, each character sometimes as an escape.
func (g generator) text(s string) string {
	escaping := g.IntN(5) == 0
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r < ' ' || r == '"' || r == '\\' || escaping && g.IntN(3) == 0:
			switch {
			case r == '/' && g.IntN(2) == 0:
				b.WriteString(`\/`)
			case r > 0xffff:
				high, low := 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff
				fmt.Fprintf(&b, `\u%04x\u%04X`, high, low)
			default:
				fmt.Fprintf(&b, pick(g, `\u%04x`, `\u%04X`), r)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func (g generator) id() string {
	if g.seldom() {
		return g.odd(0)
	}
	if g.IntN(2) == 0 {
		return strconv.Itoa(g.IntN(1 << 30))
	}
	return g.text(pick(g, "a", "id-7", "\U0001f600", strings.Repeat("i", 10)))
}

// value is one of some strings, and sometimes anything else.
func (g generator) value(from ...string) string {
	if g.seldom() {
		return g.odd(0)
	}
	return g.text(pick(g, from...))
}

// odd is a value that is seldom what is wanted: numbers in every spelling, strings that are hardly any, and nests.
func (g generator) odd(level int) string {
	switch kind := g.IntN(10); {
	case kind < 3:
		return pick(g, "0", "-0", "1", "1.0", "1e0", "1E+0", "1e-0", "01", "+1", ".5", "1.", "0x1", "1_0", "NaN", "Infinity", "-Infinity", "1e400",
			"-1e-400", "9007199254740993", "18446744073709551616", "123456789012345", "1234567890123456", "0.1e1", "5e-324")
	case kind < 6:
		return pick(g, `""`, `"\ud83d"`, `"\ude00\ud83d"`, `"\uD83D\uDE00"`, `"\ud83dx"`, `"\u0000"`, `"a\u0000"`, "\"\x00\"", "\"\x1b[31m\"", "\"\x7f\"", "\"\xff\"",
			"\"\xed\xa0\x80\"", "\"\xc0\xaf\"", `"\x41"`, `"\u12"`, `"\'"`, `"demo-chat\n"`, `"demo-chat\u000a"`, `"../../etc/passwd"`, `"--force"`, `'demo-chat'`, `"\u202e"`,
			"\""+strings.Repeat("y", 65)+"\"", `"2.0"`, `"demo-chat"`)
	case kind < 7:
		return pick(g, "null", "true", "false", "True", "nul", "undefined", "{}", "[]")
	case kind < 8:
		depth := pick(g, 1, 3, 46, 47, 48, 49, 50, 51, 60)
		return strings.Repeat("[", depth) + strings.Repeat("]", depth)
	case level > 3:
		return "0"
	case kind < 9:
		return "[" + g.odd(level+1) + "," + g.odd(level+1) + "]"
	default:
		return `{` + g.text(pick(g, "a", "service_id", "")) + `:` + g.odd(level+1) + `,` + g.text(pick(g, "a", "b")) + `:` + g.odd(level+1) + `}`
	}
}
