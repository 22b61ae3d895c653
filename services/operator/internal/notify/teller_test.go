package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clean"
)

// fake is a destination that keeps what it is told, and fails as long as it is told to.
type fake struct {
	mu    sync.Mutex
	times []time.Time
	told  []message
	fail  bool
}

func (f *fake) send(_ context.Context, m message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times, f.told = append(f.times, time.Now()), append(f.told, m)
	if f.fail {
		return errors.New("it is away")
	}
	return nil
}

func (f *fake) broken(fail bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// numbers are what each message told of.
func (f *fake) numbers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, m := range f.told {
		var all []string
		for _, n := range m.Waiting {
			all = append(all, n.Number)
		}
		out = append(out, strings.Join(all, " "))
	}
	return out
}

func waits(numbers ...string) []Notice {
	var out []Notice
	for _, n := range numbers {
		out = append(out, Notice{Number: n, full: n, ExpiresAt: time.Now().Add(time.Hour), destructive: strings.HasPrefix(n, "D")})
	}
	return out
}

// telling runs a teller in a bubble, in which time passes when everybody waits.
func telling(t *testing.T, cfg Config, f func(b *board, to *fake, log func() []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cfg.Gather, cfg.Apart = 2*time.Second, 30*time.Second
		if cfg.AnHour == 0 {
			cfg.AnHour = 30
		}
		var mu sync.Mutex
		var lines []string
		b, to := &board{}, &fake{}
		teller := newTeller(&cfg, "phone", to, func(line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			teller.run(ctx, b)
		}()
		f(b, to, func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(lines)
		})
		cancel()
		<-done
	})
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d) // in a bubble
	synctest.Wait()
}

func want(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: told %q, want %q", when, got, want)
	}
}

// TestGathered: what comes together is told together, once, and what was decided before is not told.
func TestGathered(t *testing.T) {
	telling(t, Config{}, func(b *board, to *fake, _ func() []string) {
		b.set(waits("A"))
		pass(time.Second)
		want(t, "within the gathering", to.numbers())
		b.set(waits("A", "B", "C"))
		pass(500 * time.Millisecond)
		b.set(waits("A", "B")) // C was decided
		pass(time.Second)
		want(t, "gathered", to.numbers(), "A B")
		b.set(waits("A", "B"))
		pass(2 * time.Hour)
		want(t, "once", to.numbers(), "A B")
	})
}

// TestApart: a flood of requests becomes few notifications.
func TestApart(t *testing.T) {
	telling(t, Config{}, func(b *board, to *fake, _ func() []string) {
		var all []string
		for i := range 60 { // one a second
			all = append(all, fmt.Sprintf("N%02d", i))
			b.set(waits(all...))
			pass(time.Second)
		}
		pass(time.Minute)
		if n := len(to.numbers()); n != 3 {
			t.Errorf("%d notifications of 60 requests in a minute: %q", n, to.numbers())
		}
		for i, at := range to.times[1:] {
			if apart := at.Sub(to.times[i]); apart < 30*time.Second {
				t.Errorf("two notifications are %s apart", apart)
			}
		}
		if last := to.told[len(to.told)-1]; len(last.Waiting) != most || last.More == 0 {
			t.Errorf("the last lists %d and %d more", len(last.Waiting), last.More)
		}
	})
}

func TestAnHour(t *testing.T) {
	telling(t, Config{AnHour: 4}, func(b *board, to *fake, _ func() []string) {
		for i := range 50 * 60 / 40 {
			b.set(waits(fmt.Sprintf("N%02d", i))) // each is decided after 40 s
			pass(40 * time.Second)
		}
		if n := len(to.numbers()); n != 4 {
			t.Errorf("%d notifications within the hour: %q", n, to.numbers())
		}
		pass(15 * time.Minute)
		if n := len(to.numbers()); n != 5 {
			t.Errorf("%d notifications after the hour: %q", n, to.numbers())
		}
	})
}

// TestQuiet: in quiet hours nothing is told, over midnight too; what still waits at their end is. The bubble's clock begins at midnight
// UTC; what counts is local time.
func TestQuiet(t *testing.T) {
	local := func(after time.Duration) string {
		return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(after).Local().Format("15:04")
	}
	for name, q := range map[string]Quiet{
		"from before now": {From: local(-time.Hour), To: local(6 * time.Hour)},
		"from now":        {From: local(0), To: local(6 * time.Hour)},
	} {
		telling(t, Config{Quiet: []Quiet{q}}, func(b *board, to *fake, _ func() []string) {
			b.set(waits("A", "B", "D1"))
			pass(time.Hour - time.Minute)
			b.set(waits("B", "D1"))
			long := waits("B", "D1")
			for i := range long {
				long[i].ExpiresAt = time.Now().Add(24 * time.Hour)
			}
			b.set(long)
			pass(5 * time.Hour)
			want(t, name, to.numbers())
			pass(2 * time.Minute)
			want(t, name+", at the end", to.numbers(), "D1 B")
		})
	}
	telling(t, Config{Quiet: []Quiet{{From: local(-time.Hour), To: local(6 * time.Hour), Destructive: true}}}, func(b *board, to *fake, _ func() []string) {
		b.set(waits("A"))
		pass(10 * time.Minute)
		want(t, "quiet", to.numbers())
		b.set(waits("A", "D1"))
		pass(10 * time.Second)
		want(t, "a destructive one", to.numbers(), "D1 A")
	})
	telling(t, Config{Quiet: []Quiet{{From: local(-time.Hour), To: local(6 * time.Hour), Destructive: true}}}, func(b *board, to *fake, _ func() []string) {
		many := waits(strings.Fields("A B C E F G H I J K L")...)
		b.set(many)
		pass(10 * time.Minute)
		b.set(append(many, waits("D1")...))
		pass(10 * time.Second)
		want(t, "a destructive one behind more than a message lists", to.numbers(), "D1 A B C E F G H I J")
	})
	telling(t, Config{Quiet: []Quiet{{From: local(time.Hour), To: local(2 * time.Hour)}}}, func(b *board, to *fake, _ func() []string) {
		b.set(waits("A"))
		pass(10 * time.Second)
		want(t, "outside", to.numbers(), "A")
	})
}

// TestFailures: a destination that fails is tried again, not for ever, and that is said once; when it works again that is said too.
func TestFailures(t *testing.T) {
	telling(t, Config{}, func(b *board, to *fake, log func() []string) {
		to.broken(true)
		b.set(waits("A"))
		pass(time.Hour - time.Minute)
		if n := len(to.numbers()); n != tries {
			t.Errorf("tried %d times: %v", n, to.times)
		}
		if lines := log(); len(lines) != 1 || !strings.Contains(lines[0], "phone could not be told; it is tried 5 times, and this is said once: it is away") {
			t.Errorf("said %q", lines)
		}
		b.set(waits("A", "B"))
		pass(3 * time.Second)
		to.broken(false)
		pass(time.Minute)
		got := to.numbers()
		if len(got) != tries+2 || got[len(got)-1] != "B" {
			t.Errorf("then: %q", got)
		}
		if lines := log(); len(lines) != 2 || !strings.Contains(lines[1], "again") {
			t.Errorf("said %q", lines)
		}
		to.broken(true)
		b.set(waits("B", "C"))
		pass(40 * time.Second)
		b.set(nil) // decided meanwhile
		pass(time.Hour)
		got = to.numbers()
		if n := len(got); n < tries+3 || n > tries+4 {
			t.Errorf("what was decided is told: %q", got)
		}
	})
}

// TestARequestHasTriesOfItsOwn: what comes while a destination fails is not given up with what came before it.
func TestARequestHasTriesOfItsOwn(t *testing.T) {
	telling(t, Config{}, func(b *board, to *fake, _ func() []string) {
		to.broken(true)
		b.set(waits("A"))
		for len(to.numbers()) < tries-1 {
			pass(time.Second)
		}
		b.set(waits("A", "D1")) // before the last try of A
		for len(to.numbers()) < tries {
			pass(time.Second)
		}
		to.broken(false)
		pass(5 * time.Minute)
		want(t, "A five times, D1 until it is told", to.numbers(), "A", "A", "A", "A", "D1 A", "D1")
		b.set(waits("A", "D1", "B"))
		pass(time.Minute)
		want(t, "and what comes then at once", to.numbers()[tries+1:], "B")
	})
}

// TestExpired: what ended while the vault was away is not told.
func TestExpired(t *testing.T) {
	telling(t, Config{}, func(b *board, to *fake, _ func() []string) {
		gone := waits("A")
		gone[0].ExpiresAt = time.Now().Add(time.Second)
		b.set(gone)
		pass(time.Minute)
		want(t, "expired", to.numbers())
	})
}

// TestNamesAreCleaned: whatever the vault says of names, no receiver can take it for markup, a mention, a line of its own or a command.
func TestNamesAreCleaned(t *testing.T) {
	cfg := &Config{Command: "durward"}
	for _, name := range []string{
		"@everyone", "<!channel>", "<@U123>", "[click](http://evil)", "`rm -rf`", "a\nb", "\x1b[31mred", "a\u202eb", "${HOME}", "a&b;c|d", "*bold*", "<b>x</b>", strings.Repeat("a", 1000), "", "```", "http://evil/?a=b", "имя",
	} {
		n := cfg.notices(waiting(strings.Repeat("K", 26), name, name, optionsv1.Tier_TIER_DESTRUCTIVE))[0]
		for what, text := range map[string]string{"client": n.Client, "tool": n.Tool} {
			if text == "" || len(text) > 64 || strings.ContainsAny(text, "@<>[]()`\n\x1b${}&;|*=\"' ") || text != clean.Plain(text) {
				t.Errorf("%q as %s is %q", name, what, text)
			}
		}
		if body := newMessage([]Notice{n}, false).body(); strings.Contains(body, "\n") || n.Approve != "durward approve KKKK" || n.Tier != "DESTRUCTIVE" {
			t.Errorf("%q: %s", name, body)
		}
	}
}

// A list of long names is cut where the receiver with the least room would refuse it, and says how many it leaves out.
func TestALongListIsCut(t *testing.T) {
	long := strings.Repeat("x", 64)
	n := Notice{Number: "K7F3", Tool: long, Tier: "DESTRUCTIVE", Client: long, Approve: "durward --home /srv/durward/" + long + " approve K7F3"}
	body := newMessage(slices.Repeat([]Notice{n}, 12), false).body()
	if listed := strings.Count(body, "K7F3: "); len(body) > longest+20 || listed == 0 || !strings.HasSuffix(body, fmt.Sprintf("\nand %d more", 12-listed)) {
		t.Errorf("%d bytes: %s", len(body), body)
	}
}
