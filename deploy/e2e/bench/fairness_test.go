//go:build bench

package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// Aims and sizes of the measurements of limits.
const (
	fairnessAim   = 3.0
	fairRounds    = 3
	fairFor       = 6 * time.Second
	besideRate    = 20 // calls a second
	floodAtOnce   = 32
	manyClients   = 998 // with the two of the fairness, the most that the vault takes
	crowdClients  = 200
	crowdFor      = 8 * time.Second
	besideClient  = "beside"
	floodClient   = "flood"
	ownRateBeside = "{clients: {" + besideClient + ": {reads: {per_s: 40, burst: 40}, messages: {per_s: 80, burst: 80}}}}"
)

// limits measures what one principal notices of another that asks for all it can, and what limits cost.
func (s *suite) limits() {
	s.h = harness.New(s, harness.Options{Catalog: catalog, Limits: ownRateBeside})
	beside, flood := s.h.AddClient(besideClient), s.h.AddClient(floodClient)
	tokens := s.manyClients()
	s.h.StartAll()
	s.fairness(beside, flood)
	s.crowd(tokens[:crowdClients])
	s.manyPrincipals(append(tokens, beside, flood))
}

// manyClients lets in many bearer clients, before the vault starts, and returns their tokens.
func (s *suite) manyClients() []string {
	s.Helper()
	list := strings.TrimRight(s.h.ReadFile("config/clients.yaml"), "\n") + "\n"
	var tokens []string
	for i := range manyClients {
		token := fmt.Sprintf("bench-token-of-client-%04d-%x", i, sha256.Sum256(fmt.Append(nil, "bench", i)))
		tokens = append(tokens, token)
		list += fmt.Sprintf("  - {id: many-%04d, token_sha256: %x, channel: api, tier_ceiling: READ}\n", i, sha256.Sum256([]byte(token)))
	}
	s.h.WriteFile("config/clients.yaml", list)
	return tokens
}

// flooding asks for as much as it can from many connections until it is told to stop, and returns how many answers it got
// and how many of them were refusals for a limit.
func flooding(ctx context.Context, each func(ctx context.Context, worker int) (limited bool, err error)) func() (answers, limited int64) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var answers, over atomic.Int64
	for worker := range floodAtOnce {
		all.Go(func() {
			for ctx.Err() == nil {
				limited, err := each(ctx, worker)
				if err != nil {
					continue // a flood does not care
				}
				answers.Add(1)
				if limited {
					over.Add(1)
				}
			}
		})
	}
	return func() (int64, int64) {
		cancel()
		all.Wait()
		return answers.Load(), over.Load()
	}
}

func isLimited(a answer, err error) bool {
	return bytes.Contains(a.body, []byte("RATE_LIMITED")) || err != nil && strings.Contains(err.Error(), "RATE_LIMITED")
}

// steady calls at a fixed rate for a while, whether or not the calls before were answered, and returns how long each took
// from when it was due.
func (s *suite) steady(c *client) []time.Duration {
	s.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var all sync.WaitGroup
	began := time.Now()
	for n := range int(fairFor.Seconds() * besideRate) {
		due := began.Add(time.Duration(n) * time.Second / besideRate)
		time.Sleep(time.Until(due)) // calls come at a steady rate
		all.Go(func() {
			if _, err := c.call(s.Context(), *tool, "{}"); err != nil {
				s.Errorf("a call at %d a second: %v", besideRate, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
		})
	}
	all.Wait()
	slices.Sort(took)
	return took
}

func share(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

func middle(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// fairness measures one client's calls alone and beside each kind of flood of another, in interleaved rounds.
func (s *suite) fairness(beside, flood string) {
	works := s.clients(sessions, s.h.MCPURL(), beside, 1)[0]
	floods := s.clients(sessions, s.h.MCPURL(), flood, 1)[0]
	kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: floodAtOnce, MaxConnsPerHost: floodAtOnce}}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(over *http.Client, id, token, body string) func(context.Context, int) (bool, error) {
		return func(ctx context.Context, _ int) (bool, error) {
			c := client{http: over, era: sessions, url: s.h.MCPURL(), token: token, id: id}
			a, err := c.post(ctx, "", []byte(body))
			if limited := isLimited(a, err); limited || err == nil {
				return limited, nil
			}
			return false, err
		}
	}
	read := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + *tool + `","arguments":{}}}`
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	var guess atomic.Int64
	kinds := []struct {
		name string
		each func(context.Context, int) (bool, error)
	}{
		{"reads", send(kept, floods.id, flood, read)},
		{"reads, a connection for each", send(fresh, floods.id, flood, read)},
		{"a megabyte of blanks", send(kept, floods.id, flood, strings.Repeat(" ", 1<<20-len(read))+read)},
		{"unknown tokens", func(ctx context.Context, worker int) (bool, error) {
			_, err := send(kept, "", fmt.Sprintf("guess-%d", guess.Add(1)), hello)(ctx, worker)
			return err == nil, nil // a 401 is an answer
		}},
	}
	alone := map[string][]time.Duration{}
	beside50, beside95 := map[string][]time.Duration{}, map[string][]time.Duration{}
	pace, used := map[string][]float64{}, map[string][]float64{}
	s.steady(works) // warm
	for range fairRounds {
		for _, k := range kinds {
			took := s.steady(works)
			alone["p50 "+k.name], alone["p95 "+k.name] = append(alone["p50 "+k.name], share(took, 50)), append(alone["p95 "+k.name], share(took, 95))
			stop := flooding(s.Context(), k.each)
			time.Sleep(time.Second) // its burst is over
			before := s.processors()[harness.Gateway]
			took = s.steady(works)
			used[k.name] = append(used[k.name], (s.processors()[harness.Gateway]-before).Seconds()/fairFor.Seconds())
			began := time.Now()
			answers, _ := stop()
			pace[k.name] = append(pace[k.name], float64(answers)/(fairFor+time.Second+time.Since(began)).Seconds())
			beside50[k.name], beside95[k.name] = append(beside50[k.name], share(took, 50)), append(beside95[k.name], share(took, 95))
		}
	}
	for _, k := range kinds {
		a50, a95 := middle(alone["p50 "+k.name]), middle(alone["p95 "+k.name])
		b50, b95 := middle(beside50[k.name]), middle(beside95[k.name])
		slices.Sort(pace[k.name])
		slices.Sort(used[k.name])
		what := fmt.Sprintf("%d calls/s beside a flood from %d connections (%s: %.0f answers/s, gateway %.0f %% of a processor)", besideRate, floodAtOnce,
			k.name, pace[k.name][len(pace[k.name])/2], 100*used[k.name][len(used[k.name])/2])
		ratio := float64(b95) / float64(a95)
		s.row(row{what + ", p50", ms(a50), ms(b50), fmt.Sprintf("%.2f x", float64(b50)/float64(a50)), "", ""})
		s.row(row{what + ", p95", ms(a95), ms(b95), fmt.Sprintf("%.2f x", ratio), fmt.Sprintf("<= %g x", fairnessAim), verdict(ratio <= fairnessAim)})
	}
}

// crowd measures how much many clients at full tilt get together, each within the default limits.
func (s *suite) crowd(tokens []string) {
	s.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: len(tokens)}
	s.Cleanup(transport.CloseIdleConnections)
	var all []*client
	for _, token := range tokens {
		all = append(all, s.connectMany(transport, token))
	}
	var served, limited atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	var running sync.WaitGroup
	began := time.Now()
	for _, c := range all {
		running.Go(func() {
			for time.Since(began) < crowdFor {
				at := time.Now()
				a, err := c.post(s.Context(), "", []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"`+*tool+`","arguments":{}}}`))
				switch {
				case isLimited(a, err):
					limited.Add(1)
				case err != nil:
					s.Error(err)
					return
				default:
					served.Add(1)
					mu.Lock()
					took = append(took, time.Since(at))
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	slices.Sort(took)
	per := func(n int64) float64 { return float64(n) / crowdFor.Seconds() }
	s.row(row{
		fmt.Sprintf("%d clients at full tilt, default limits: reads/s in all (p50, p95)", len(tokens)), "",
		fmt.Sprintf("%.0f (%s, %s), %.0f/s refused", per(served.Load()), ms(share(took, 50)), ms(share(took, 95)), per(limited.Load())), "", "", "",
	})
}

// connectMany opens a session as soon as the gate lets it: to the gateway all these clients are new.
func (s *suite) connectMany(transport http.RoundTripper, token string) *client {
	s.Helper()
	for {
		c, err := newClient(s.Context(), transport, sessions, s.h.MCPURL(), token)
		if err == nil {
			return c
		}
		if !isLimited(answer{}, err) {
			s.Fatal(err)
		}
	}
}

// manyPrincipals measures the gateway's memory with many principals, each with a session of one era and one of the other.
func (s *suite) manyPrincipals(tokens []string) {
	s.Helper()
	// A gateway that has met nobody, with room for all at its door.
	s.h.WriteFile("config/gateway.yaml", strings.ReplaceAll(s.h.ReadFile("config/gateway.yaml"), "limits: {", "limits: {strangers: {per_s: 100000, burst: 100000}, strangers_at_once: 64, "))
	s.h.Process(harness.Gateway).Stop()
	s.h.StartProcess(harness.Gateway)
	pid := s.h.Process(harness.Gateway).PID()
	resident := func() float64 {
		m, err := memory(pid, "VmRSS")
		s.must(err)
		return m
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 8, MaxConnsPerHost: 8}
	s.Cleanup(transport.CloseIdleConnections)
	begin := s.connectMany(transport, tokens[0])
	for range 20 {
		_, err := begin.call(s.Context(), *tool, "{}")
		s.must(err)
		time.Sleep(100 * time.Millisecond) // calls come at a steady rate
	}
	before := resident()
	var all sync.WaitGroup
	work := make(chan string)
	for range 8 {
		all.Go(func() {
			for token := range work {
				c := s.connectMany(transport, token)
				if _, err := c.call(s.Context(), *tool, "{}"); err != nil {
					s.Error(err)
				}
				modern, err := newClient(s.Context(), transport, stateless, s.h.MCPURL(), token)
				if err == nil {
					_, err = modern.call(s.Context(), *tool, "{}")
				}
				if err != nil {
					s.Error(err)
				}
			}
		})
	}
	for _, token := range tokens {
		work <- token
	}
	close(work)
	all.Wait()
	after := resident()
	s.row(row{fmt.Sprintf("gateway's memory with %d principals, each with a session in both eras", len(tokens)), fmt.Sprintf("%.1f MiB with one", before),
		fmt.Sprintf("%.1f MiB", after), fmt.Sprintf("%.1f KiB each", (after-before)*1024/float64(len(tokens))), "", ""})
}
