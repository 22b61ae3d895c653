//go:build hostile

package hostile

import (
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/contract"
)

var compared = flag.Int("compared", size(20_000, 1500), "how many mutants are sent both ways")

// still is a catalogue whose answers are the same on every host, at any time.
func still(*harness.Host) string {
	return `version: 1
gpus:
  - {index: 0, name: Simulated 24 GB, memory_mib: 24576, simulated: true}
models: [{id: demo/one, served_name: demo-one}]
services:
  - {id: "null", name: Decoy, driver: "null"}
  - {id: admin, name: Decoy, driver: "null", model: demo/one, gpus: [0], vram_mib: 6144}
modes:
  - {id: both, name: Both, services: ["null", admin]}
`
}

// way is a gateway with a client of it.
type way struct {
	g gateway
	c client
	l line
}

// seen is what a client sees of an answer, but for what is made anew each time: ids.
type seen struct {
	Status  int
	Type    string
	Outcome string
	Bodies  []string
}

func (w *way) see(t *testing.T, s *surface, j job) seen {
	t.Helper()
	a, err := w.l.send(s.build(j.era, w.c, j.text))
	if err != nil {
		t.Errorf("%s, %s, %q: no answer: %v", s.name, j.era, j.text, err)
	}
	out := seen{Status: a.status, Type: a.header.Get("Content-Type"), Outcome: a.outcome}
	for _, m := range messages(a.body) {
		out.Bodies = append(out.Bodies, withoutIDs(string(m)))
	}
	return out
}

// snapshots reports whether a surface's message calls a tool that the gateway may answer by itself.
func snapshots(s surface) bool {
	if s.guest || s.streams {
		return false
	}
	body := s.build(stateless, client{}, "x").body
	return slices.ContainsFunc(harness.Tools(), func(tool contract.Tool) bool {
		return tool.Snapshot && strings.Contains(body, `"method":"tools/call"`) && strings.Contains(body, `"name":"`+tool.Name+`"`)
	})
}

// TestBothWays sends each hostile string in each call of a read that the gateway answers by itself, to a gateway that does and to one
// that has the MCP SDK serve everything: a client sees no difference.
func TestBothWays(t *testing.T) {
	hosts := [2]*harness.Host{}
	for i := range hosts {
		hosts[i] = harness.Start(t, harness.Options{Catalog: still, ThroughSDK: i == 1})
	}
	g := gateway{hosts[0].Address(harness.Gateway)}
	c := client{token: hosts[0].AddClient("lister")}
	l := line{address: g.address}
	defer l.close()
	list, err := l.send(g.request(stateless, c, "tools/list", part{}))
	must(t, err)
	// The surfaces of each gateway are the same in the same order.
	var surfaces [2][]surface
	for i, h := range hosts {
		its := gateway{h.Address(harness.Gateway)}
		tools, err := its.toolSurfaces(resultOf(t, list))
		must(t, err)
		surfaces[i] = slices.DeleteFunc(append(tools, its.otherSurfaces()...), func(s surface) bool { return !snapshots(s) })
	}

	var jobs []job
	own := seeds(os.TempDir())
	pool := append(slices.Clone(own), "null", "admin", "both", "demo/one")
	for k, s := range surfaces[0] {
		for _, e := range s.eras {
			for _, text := range pool {
				jobs = append(jobs, job{k, e, text})
			}
		}
	}
	if *corpora != "" {
		strata, err := readCorpora(*corpora)
		must(t, err)
		for _, s := range strata {
			pool = append(pool, s.strings...)
		}
	}
	m := mutator{rand.New(rand.NewPCG(*seed, 3)), pool}
	for i := range *compared {
		k := i % len(surfaces[0])
		text := m.next()
		for _, e := range surfaces[0][k].eras {
			jobs = append(jobs, job{k, e, text})
		}
	}

	var next, differ, served atomic.Int64
	var sending sync.WaitGroup
	for w := range 8 {
		var ways [2]way
		for i, h := range hosts {
			ways[i] = way{g: gateway{h.Address(harness.Gateway)}, c: client{token: h.AddClient("both-" + string(rune('a'+w)))}}
			ways[i].l.address = ways[i].g.address
			ways[i].c.session = session(t, ways[i].g, ways[i].c)
		}
		sending.Go(func() {
			defer ways[0].l.close()
			defer ways[1].l.close()
			for {
				at := int(next.Add(1)) - 1
				if at >= len(jobs) || differ.Load() > 10 {
					return
				}
				j := jobs[at]
				got, want := ways[0].see(t, &surfaces[0][j.surface], j), ways[1].see(t, &surfaces[1][j.surface], j)
				if diff := cmp.Diff(want, got); diff != "" {
					differ.Add(1)
					t.Errorf("%s, %s, %q (-through the SDK +at once):\n%s", surfaces[0][j.surface].name, j.era, j.text, diff)
				}
				if got.Status == 200 && slices.ContainsFunc(got.Bodies, func(b string) bool { return strings.Contains(b, `"status":"ok"`) }) {
					served.Add(1)
				}
			}
		})
	}
	sending.Wait()
	t.Logf("%d strings through %d surfaces; %d were answered with what was asked for", len(jobs), len(surfaces[0]), served.Load())
	if served.Load() < int64(len(surfaces[0])) {
		t.Errorf("only %d calls of %d surfaces were answered with what was asked for", served.Load(), len(surfaces[0]))
	}
}
