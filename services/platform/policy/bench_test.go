package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/contract"
)

// benchSources are n rules as hosts grow them: what each client may do unasked, with arguments and hours, a few forbids for
// everybody, and limits.
func benchSources(n int) []Source {
	var b strings.Builder
	names := []string{"switch_mode", "start_service", "stop_service", "sleep_service", "wake_service"}
	for i := range n {
		tool := names[i%len(names)]
		argument := "service_id"
		if tool == "switch_mode" {
			argument = "mode_id"
		}
		switch {
		case i%10 == 9:
			fmt.Fprintf(&b, "forbid (principal, action == Action::\"call:%s\", resource) when { context.arguments.%s == \"secret-%d\" };\n", tool, argument, i)
		case i%50 == 8:
			fmt.Fprintf(&b, "forbid (principal in Channel::\"api\", action in Action::\"call\", resource) when { context.time.hour == %d && context.tier == \"DESTRUCTIVE\" };\n", i%24)
		default:
			fmt.Fprintf(&b, "permit (principal in Client::\"client-%d\", action == Action::\"callWithoutApproval:%s\", resource) when { [\"m%d\", \"n%d\"].contains(context.arguments.%s) && context.time.hour > 7 };\n",
				i%40, tool, i, i, argument)
		}
	}
	var sources []Source
	for i, text := range slices.Collect(chunks(b.String(), 200<<10)) {
		sources = append(sources, system(fmt.Sprintf("policy/%03d.cedar", i), text))
	}
	return append(sources, tools("tools: {switch_mode: {min_interval_s: 5, budget: {day: 50}}}"))
}

func chunks(text string, size int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			end := len(text)
			if end > size {
				end = strings.LastIndex(text[:size], "\n") + 1
			}
			if !yield(text[:end]) {
				return
			}
			text = text[end:]
		}
	}
}

func benchCall(b testing.TB) Call {
	b.Helper()
	tool, ok := contract.Lookup("switch_mode")
	if !ok {
		b.Fatal("no such tool")
	}
	c := call(tool, arguments(`{"mode_id":"m25","plan_digest":"`+strings.Repeat("ab", 32)+`"}`))
	c.Client, c.Agent = "client-25", "coder"
	return c
}

// BenchmarkDecide reports the median and the 99th percentile of a decision, beside the engine's own over all rules at once.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 1000, 4900} {
		s := compiledSet(b, benchSources(n)...)
		c := benchCall(b)
		b.Run(fmt.Sprintf("indexed/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			timed(b, func() { s.Decide(c) })
		})
		b.Run(fmt.Sprintf("naive/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			timed(b, func() { naive(s, c) })
		})
	}
	// No rule's scope helps: every one of them looks at the call.
	var b2 strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b2, "forbid (principal, action, resource) when { context.time.minute == %d && context.channel == \"api\" };\n", i%60)
	}
	s := compiledSet(b, system("policy/a.cedar", b2.String()))
	c := benchCall(b)
	b.Run("worst/1000", func(b *testing.B) {
		b.ReportAllocs()
		timed(b, func() { s.Decide(c) })
	})
}

func timed(b *testing.B, f func()) {
	took := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		start := time.Now()
		f()
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

func BenchmarkCompile(b *testing.B) {
	sources := benchSources(1000)
	for b.Loop() {
		if _, err := Compile(sources); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAlways(b *testing.B) {
	s := compiledSet(b, benchSources(1000)...)
	c := benchCall(b)
	for b.Loop() {
		s.Always(c)
	}
}

// BenchmarkCompileFull is as many rules as there may be, each of them about every tool.
func BenchmarkCompileFull(b *testing.B) {
	text := strings.Repeat("permit(principal,action,resource)when{context.known};\n", 2450)
	sources := []Source{system("policy/a.cedar", text), system("policy/b.cedar", text)}
	for b.Loop() {
		if _, err := Compile(sources); err != nil {
			b.Fatal(err)
		}
	}
}
