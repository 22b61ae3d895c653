// Package picture keeps a picture of what happens now: services, GPUs, modes, operations and their steps, as the executor and the
// vault tell it. The commands that watch and the screen of decisions draw it.
package picture

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
)

const (
	// watchHost is how often GPUs are asked for, which have no stream of their own.
	watchHost = time.Second
	// settle is how long a change is given to bring others with it.
	settle = 500 * time.Millisecond
	// watchRetry is how long an unreachable process is left alone.
	watchRetry = time.Second
	// watchPatience bounds each question.
	watchPatience = 5 * time.Second
	// memoryNews is by how many MiB a GPU's use changes before a line is written about it.
	memoryNews = 256
	// keptEnded is how long an operation that ended stays on the screen.
	keptEnded = 10 * time.Second
)

// Picture is what watch knows. One goroutine owns it.
type Picture struct {
	Services []*executorv1.ServiceSummary
	Host     *executorv1.GetHostResponse
	Modes    *executorv1.ListModesResponse
	Ops      map[string]*Watched
	Waiting  map[string]struct{}
	// Problems are why a source does not answer, by source.
	Problems map[string]string
	// Danger is the banner of dangerous mode; "" while nothing is dangerous.
	Danger string
	// told is what the last line about each GPU said, by index: small changes add up.
	told map[uint32]*executorv1.Gpu
}

func New() *Picture {
	return &Picture{
		Ops: map[string]*Watched{}, Waiting: map[string]struct{}{}, Problems: map[string]string{}, told: map[uint32]*executorv1.Gpu{},
	}
}

// Watched is one operation that is or was being carried out.
type Watched struct {
	Op    *vaultv1.Operation
	Title string
	Steps cli.Steps
	// gone is when it was seen to have ended; zero while it runs.
	gone time.Time
}

// Change is one piece of news: how it changes the picture, and what a line says of it, if anything.
type Change func(*Picture) []News

// News is a line of watch where it is not a terminal.
type News struct {
	Text  string
	Value any
}

// Kind is "service" for news of a service's state, and "" for any other.
func (n News) Kind() string {
	if _, ok := n.Value.(serviceNews); ok {
		return "service"
	}
	return ""
}

// Objects of --json, beside stepJSON. Field names are stable.
type (
	serviceNews struct {
		Kind      string `json:"kind"`
		ServiceID string `json:"service_id"`
		State     string `json:"state"`
		Initial   bool   `json:"initial"`
	}
	gpuNews struct {
		Kind       string `json:"kind"`
		Index      uint32 `json:"index"`
		TotalMiB   uint32 `json:"memory_total_mib"`
		UsedMiB    uint32 `json:"memory_used_mib"`
		FreeMiB    uint32 `json:"memory_free_mib"`
		ForeignMiB uint32 `json:"memory_foreign_mib"`
		ClaimedMiB uint32 `json:"memory_claimed_mib"`
		Problem    string `json:"problem,omitempty"`
	}
	modeNews struct {
		Kind    string `json:"kind"`
		Current string `json:"current"`
		Running bool   `json:"running"`
	}
	operationNews struct {
		Kind        string `json:"kind"`
		OperationID string `json:"operation_id"`
		State       string `json:"state"`
		Tool        string `json:"tool"`
		Principal   string `json:"principal"`
	}
	DangerNews struct {
		Kind string `json:"kind"`
		// Sessions are the sessions that are in dangerous mode now; none: it is over.
		Sessions []string `json:"sessions"`
	}
	problemNews struct {
		Kind    string `json:"kind"`
		Source  string `json:"source"`
		Problem string `json:"problem"`
	}
)

// Gather runs sources of news until ctx or the returned function ends them, which waits for them.
func Gather(ctx context.Context, sources ...func(context.Context, func(Change) bool)) (<-chan Change, func()) {
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan Change)
	tell := func(c Change) bool {
		select {
		case changes <- c:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var running sync.WaitGroup
	for _, source := range sources {
		running.Go(func() { source(ctx, tell) })
	}
	return changes, func() {
		cancel()
		running.Wait()
	}
}

// WatchHost asks for the GPUs every second.
func WatchHost(s *cli.Session) func(context.Context, func(Change) bool) {
	return func(ctx context.Context, tell func(Change) bool) {
		Ask(ctx, "executor", EverySecond, tell, func(ctx context.Context) (Change, error) {
			host, err := s.Executor.GetHost(ctx, &executorv1.GetHostRequest{})
			return HostChange(host), err
		})
	}
}

// EverySecond waits for the next second.
func EverySecond(ctx context.Context, _ bool) bool { return clock.Sleep(ctx, watchHost) }

// OnceStirred waits until something has changed, and a moment longer for what changes with it; after a failure it waits a
// while.
func OnceStirred(stirred <-chan struct{}) func(context.Context, bool) bool {
	return func(ctx context.Context, answered bool) bool {
		if !answered {
			return clock.Sleep(ctx, watchRetry)
		}
		select {
		case <-ctx.Done():
			return false
		case <-stirred:
			return clock.Sleep(ctx, settle)
		}
	}
}

// Ask asks again and again, each time that next says so, and tells when there is no answer and when there is one again.
func Ask(
	ctx context.Context, source string, next func(ctx context.Context, answered bool) bool, tell func(Change) bool,
	question func(context.Context) (Change, error),
) {
	for {
		asking, cancel := context.WithTimeout(ctx, watchPatience)
		answer, err := question(asking)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			answer = ProblemChange(source, cli.PublicText(err))
		} else {
			inner := answer
			answer = func(p *Picture) []News { return append(solved(p, source), inner(p)...) }
		}
		if !tell(answer) || !next(ctx, err == nil) {
			return
		}
	}
}

// WatchDanger follows which sessions are in dangerous mode. While the vault does not answer, which is told elsewhere, the picture
// stays as it was.
func WatchDanger(ctx context.Context, s *cli.Session, durward string, tell func(Change) bool) {
	for {
		asking, cancel := context.WithTimeout(ctx, watchPatience)
		list, err := s.Vault.Standing.ListStanding(asking, &vaultv1.ListStandingRequest{})
		cancel()
		if err == nil && !tell(DangerChange(list, durward)) || !clock.Sleep(ctx, watchHost) {
			return
		}
	}
}

func DangerChange(list *vaultv1.ListStandingResponse, durward string) Change {
	return func(p *Picture) []News {
		found := cli.Dangers(list)
		line := cli.DangerLine(found, durward)
		if line == p.Danger {
			return nil
		}
		p.Danger = line
		sessions := output.Each(found, func(one *vaultv1.Standing) string { return clean.Line(one.GetSession(), 32) })
		line = cmp.Or(line, "dangerous mode is over")
		return []News{{line, DangerNews{"dangerous", sessions}}}
	}
}

func ProblemChange(source, problem string) Change {
	return func(p *Picture) []News {
		if p.Problems[source] == problem {
			return nil
		}
		p.Problems[source] = problem
		return []News{{source + ": " + problem, problemNews{"problem", source, problem}}}
	}
}

func solved(p *Picture, source string) []News {
	if p.Problems[source] == "" {
		return nil
	}
	delete(p.Problems, source)
	return []News{{source + ": answers again", problemNews{"problem", source, ""}}}
}

// WatchServices passes on the states of services as they change. The list is read anew with each stream, since the catalog
// may have changed.
func WatchServices(ctx context.Context, s *cli.Session, stir func(), tell func(Change) bool) {
	for {
		err := func() error {
			asking, cancel := context.WithTimeout(ctx, watchPatience)
			list, err := s.Executor.Tools.ListServices(asking, &executorv1.ListServicesRequest{})
			cancel()
			if err != nil {
				return err
			}
			stream, err := s.Executor.Events.WatchServices(ctx, &executorv1.WatchServicesRequest{})
			if err != nil {
				return err
			}
			if !tell(func(p *Picture) []News {
				p.Services = list.GetServices()
				return solved(p, "services")
			}) {
				return nil
			}
			for {
				said, err := stream.Recv()
				if err != nil {
					return err
				}
				if !tell(ServiceChange(said)) {
					return nil
				}
				stir()
			}
		}()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !tell(ProblemChange("services", cli.PublicText(err))) {
			return
		}
		if !clock.Sleep(ctx, watchRetry) {
			return
		}
	}
}

func ServiceChange(said *executorv1.WatchServicesResponse) Change {
	return func(p *Picture) []News {
		id := clean.Line(said.GetServiceId(), 64)
		i := slices.IndexFunc(p.Services, func(s *executorv1.ServiceSummary) bool {
			return s.GetServiceId() == said.GetServiceId()
		})
		if i < 0 {
			p.Services = append(p.Services, &executorv1.ServiceSummary{ServiceId: said.GetServiceId()})
			i = len(p.Services) - 1
		}
		p.Services[i].State = said.GetState()
		word := contract.WordOf(said.GetState())
		return []News{{output.Pad(id, 24) + " " + word, serviceNews{"service", id, word, said.GetInitial()}}}
	}
}

func HostChange(host *executorv1.GetHostResponse) Change {
	return func(p *Picture) []News {
		var out []News
		for _, holders := range host.GetGpus() {
			g := holders.GetGpu()
			if before := p.told[g.GetIndex()]; before != nil && before.GetProblem() == g.GetProblem() &&
				before.GetMemoryClaimedMib() == g.GetMemoryClaimedMib() &&
				distance(before.GetMemoryUsedMib(), g.GetMemoryUsedMib()) < memoryNews {
				continue
			}
			p.told[g.GetIndex()] = g
			problem := clean.Line(g.GetProblem(), 200)
			text := fmt.Sprintf("GPU %d %s", g.GetIndex(), problem)
			if problem == "" {
				text = fmt.Sprintf("GPU %d: %d of %d MiB used, %d foreign, %d claimed", g.GetIndex(), g.GetMemoryUsedMib(),
					g.GetMemoryTotalMib(), g.GetMemoryForeignMib(), g.GetMemoryClaimedMib())
			}
			out = append(out, News{text, gpuNews{
				"gpu", g.GetIndex(), g.GetMemoryTotalMib(), g.GetMemoryUsedMib(), g.GetMemoryFreeMib(),
				g.GetMemoryForeignMib(), g.GetMemoryClaimedMib(), problem,
			}})
		}
		p.Host = host
		return out
	}
}

func distance(a, b uint32) uint32 { return max(a, b) - min(a, b) }

func ModesChange(modes *executorv1.ListModesResponse) Change {
	return func(p *Picture) []News {
		known := p.Modes != nil
		current, running := modes.GetCurrent(), cli.ModeRuns(modes)
		same := known && p.Modes.GetCurrent() == current && cli.ModeRuns(p.Modes) == running
		p.Modes = modes
		if same || !known && current == "" {
			return nil
		}
		text := "no mode"
		if current != "" {
			text = "mode " + clean.Line(current, 64) + cli.When(!running, " (drifted)")
		}
		return []News{{text, modeNews{"mode", clean.Line(current, 64), running}}}
	}
}
