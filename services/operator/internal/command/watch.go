package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/live"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
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

func (a *app) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Services, GPU memory and running steps, live",
		Long: `On a terminal: one screen with every service's state, a bar of each GPU's memory, the steps of what is being
carried out and what waits for you, until Ctrl-C. It goes on when a process is restarted.

Anywhere else: a line for each change, with --json one object a line ("kind" is service, gpu, mode, operation,
step, dangerous or problem).`,
		Example: "  durward watch\n  durward watch --json | jq -c 'select(.kind == \"service\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.watch(ctx, s)
		},
	}
}

// picture is what watch knows. One goroutine owns it.
type picture struct {
	services []*executorv1.ServiceSummary
	host     *executorv1.GetHostResponse
	modes    *executorv1.ListModesResponse
	ops      map[string]*watched
	waiting  map[string]struct{}
	// problems are why a source does not answer, by source.
	problems map[string]string
	// danger is the banner of dangerous mode; "" while nothing is dangerous.
	danger string
	// told is what the last line about each GPU said, by index: small changes add up.
	told map[uint32]*executorv1.Gpu
}

func newPicture() *picture {
	return &picture{
		ops: map[string]*watched{}, waiting: map[string]struct{}{}, problems: map[string]string{}, told: map[uint32]*executorv1.Gpu{},
	}
}

// watched is one operation that is or was being carried out.
type watched struct {
	op    *vaultv1.Operation
	title string
	steps steps
	// gone is when it was seen to have ended; zero while it runs.
	gone time.Time
}

// change is one piece of news: how it changes the picture, and what a line says of it, if anything.
type change func(*picture) []news

// news is a line of watch where it is not a terminal.
type news struct {
	text  string
	value any
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
	dangerNews struct {
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

func (a *app) watch(ctx context.Context, s *session) error {
	// The first answer says whether there is anything to watch at all.
	list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
	if err != nil {
		return err
	}
	p := newPicture()
	p.services = list.GetServices()
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan change)
	tell := func(c change) bool {
		select {
		case changes <- c:
			return true
		case <-ctx.Done():
			return false
		}
	}
	// Which mode the host is in can change when a service does; asking again and again would fill the log with reads.
	stirred := make(chan struct{}, 1)
	stir := func() {
		select {
		case stirred <- struct{}{}:
		default:
		}
	}
	sources := []func(){
		func() { watchServices(ctx, s, stir, tell) },
		func() {
			ask(ctx, "executor", everySecond, tell, func(ctx context.Context) (change, error) {
				host, err := s.Executor.GetHost(ctx, &executorv1.GetHostRequest{})
				return hostChange(host), err
			})
		},
		func() {
			ask(ctx, "modes", onceStirred(stirred), tell, func(ctx context.Context) (change, error) {
				modes, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
				return modesChange(modes), err
			})
		},
		func() { a.watchOperations(ctx, s, stir, tell) },
		func() { watchDanger(ctx, s, tell) },
	}
	done := make(chan struct{}, len(sources))
	for _, source := range sources {
		go func() {
			defer func() { done <- struct{}{} }()
			source()
		}()
	}
	defer func() {
		cancel()
		for range sources {
			<-done
		}
	}()
	if a.json || !output.IsTerminal(a.out.Out) {
		return a.watchLines(ctx, p, changes)
	}
	return a.watchScreen(ctx, p, changes)
}

// watchLines writes a line for each piece of news.
func (a *app) watchLines(ctx context.Context, p *picture, changes <-chan change) error {
	for {
		select {
		case <-ctx.Done():
			return nil // Ctrl-C is how watching ends
		case c := <-changes:
			p.forget(a.now())
			for _, n := range c(p) {
				if !a.json {
					a.out.Printf("%s  %s\n", a.now().Format(time.TimeOnly), n.text)
					continue
				}
				if err := a.out.Line(n.value); err != nil {
					return err
				}
			}
		}
	}
}

// watchScreen draws the whole picture whenever it changes, and at least each second, since times move.
func (a *app) watchScreen(ctx context.Context, p *picture, changes <-chan change) error {
	area := live.Whole(a.out.Out)
	defer area.Close()
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	dirty, drawn := true, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-changes:
			c(p)
			dirty = true
		case now := <-tick.C:
			if dirty || now.Sub(drawn) >= time.Second {
				p.forget(a.now())
				width, _ := area.Size()
				area.Draw(a.screenLines(p, width))
				dirty, drawn = false, now
			}
		}
	}
}

// screenLines lays the picture out.
func (a *app) screenLines(p *picture, width int) []string {
	out, now := a.out, a.now()
	mode := "no mode"
	if current := p.modes.GetCurrent(); current != "" {
		mode = "mode " + clean.Line(current, 64)
		if !modeRuns(p.modes) {
			mode += out.Yellow(" (drifted)")
		}
	}
	lines := []string{out.Bold("durward") + "  " + mode + "  " + out.Dim(now.Format(time.TimeOnly)+"  Ctrl-C ends")}
	if p.danger != "" {
		lines = append(lines, out.Red(p.danger))
	}
	for _, source := range sortedSources(p.problems) {
		lines = append(lines, out.Red(source+": "+p.problems[source]))
	}
	if n := len(p.waiting); n > 0 {
		lines = append(lines, out.Yellow(fmt.Sprintf("%d waiting for you: durward approvals", n)))
	}
	lines = append(lines, "")
	if p.host != nil {
		lines = append(lines, a.hostLines(out, p.host, min(max(width-4, 20), maxBarWidth), false)...)
		lines = append(lines, "")
	}
	for _, id := range sortedOperations(p.ops) {
		w := p.ops[id]
		lines = append(lines, w.title)
		for _, line := range w.steps.lines(out, now) {
			lines = append(lines, "  "+line)
		}
		lines = append(lines, "")
	}
	for _, service := range p.services {
		lines = append(lines, fmt.Sprintf("%s %s %s", output.Pad(clean.Line(service.GetServiceId(), 64), 28),
			output.Pad(a.stateColour(service.GetState()), 10), out.Dim(clean.Line(service.GetModel(), 128))))
	}
	return lines
}

func modeRuns(modes *executorv1.ListModesResponse) bool {
	for _, m := range modes.GetModes() {
		if m.GetModeId() == modes.GetCurrent() {
			return m.GetRunning()
		}
	}
	return false
}

func sortedSources(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// sortedOperations orders operations by when they were asked for.
func sortedOperations(ops map[string]*watched) []string {
	var out []string
	for id := range ops {
		out = append(out, id)
	}
	slices.SortFunc(out, func(x, y string) int {
		if c := ops[x].op.GetAskedAt().AsTime().Compare(ops[y].op.GetAskedAt().AsTime()); c != 0 {
			return c
		}
		return strings.Compare(x, y)
	})
	return out
}

// everySecond waits for the next second.
func everySecond(ctx context.Context, _ bool) bool { return pause(ctx, watchHost) }

// onceStirred waits until something has changed, and a moment longer for what changes with it; after a failure it waits a
// while.
func onceStirred(stirred <-chan struct{}) func(context.Context, bool) bool {
	return func(ctx context.Context, answered bool) bool {
		if !answered {
			return pause(ctx, watchRetry)
		}
		select {
		case <-ctx.Done():
			return false
		case <-stirred:
			return pause(ctx, settle)
		}
	}
}

// ask asks again and again, each time that next says so, and tells when there is no answer and when there is one again.
func ask(
	ctx context.Context, source string, next func(ctx context.Context, answered bool) bool, tell func(change) bool,
	question func(context.Context) (change, error),
) {
	for {
		asking, cancel := context.WithTimeout(ctx, watchPatience)
		answer, err := question(asking)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			answer = problemChange(source, publicText(err))
		} else {
			inner := answer
			answer = func(p *picture) []news { return append(solved(p, source), inner(p)...) }
		}
		if !tell(answer) || !next(ctx, err == nil) {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// watchDanger follows which sessions are in dangerous mode. While the vault does not answer, which is told elsewhere, the picture
// stays as it was.
func watchDanger(ctx context.Context, s *session, tell func(change) bool) {
	for {
		asking, cancel := context.WithTimeout(ctx, watchPatience)
		list, err := s.Vault.Standing.ListStanding(asking, &vaultv1.ListStandingRequest{})
		cancel()
		if err == nil && !tell(dangerChange(list)) || !pause(ctx, watchHost) {
			return
		}
	}
}

func dangerChange(list *vaultv1.ListStandingResponse) change {
	return func(p *picture) []news {
		found := dangers(list)
		line := dangerLine(found)
		if line == p.danger {
			return nil
		}
		p.danger = line
		sessions := []string{}
		for _, one := range found {
			sessions = append(sessions, clean.Line(one.GetSession(), 32))
		}
		if line == "" {
			line = "dangerous mode is over"
		}
		return []news{{line, dangerNews{"dangerous", sessions}}}
	}
}

func problemChange(source, problem string) change {
	return func(p *picture) []news {
		if p.problems[source] == problem {
			return nil
		}
		p.problems[source] = problem
		return []news{{source + ": " + problem, problemNews{"problem", source, problem}}}
	}
}

func solved(p *picture, source string) []news {
	if p.problems[source] == "" {
		return nil
	}
	delete(p.problems, source)
	return []news{{source + ": answers again", problemNews{"problem", source, ""}}}
}

// watchServices passes on the states of services as they change. The list is read anew with each stream, since the catalogue
// may have changed.
func watchServices(ctx context.Context, s *session, stir func(), tell func(change) bool) {
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
			if !tell(func(p *picture) []news {
				p.services = list.GetServices()
				return solved(p, "services")
			}) {
				return nil
			}
			for {
				said, err := stream.Recv()
				if err != nil {
					return err
				}
				if !tell(serviceChange(said)) {
					return nil
				}
				stir()
			}
		}()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !tell(problemChange("services", publicText(err))) {
			return
		}
		if !pause(ctx, watchRetry) {
			return
		}
	}
}

func serviceChange(said *executorv1.WatchServicesResponse) change {
	return func(p *picture) []news {
		id := clean.Line(said.GetServiceId(), 64)
		i := slices.IndexFunc(p.services, func(s *executorv1.ServiceSummary) bool {
			return s.GetServiceId() == said.GetServiceId()
		})
		if i < 0 {
			p.services = append(p.services, &executorv1.ServiceSummary{ServiceId: said.GetServiceId()})
			i = len(p.services) - 1
		}
		p.services[i].State = said.GetState()
		word := stateWord(said.GetState())
		return []news{{output.Pad(id, 24) + " " + word, serviceNews{"service", id, word, said.GetInitial()}}}
	}
}

func hostChange(host *executorv1.GetHostResponse) change {
	return func(p *picture) []news {
		var out []news
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
			out = append(out, news{text, gpuNews{
				"gpu", g.GetIndex(), g.GetMemoryTotalMib(), g.GetMemoryUsedMib(), g.GetMemoryFreeMib(),
				g.GetMemoryForeignMib(), g.GetMemoryClaimedMib(), problem,
			}})
		}
		p.host = host
		return out
	}
}

func distance(a, b uint32) uint32 { return max(a, b) - min(a, b) }

func modesChange(modes *executorv1.ListModesResponse) change {
	return func(p *picture) []news {
		known := p.modes != nil
		current, running := modes.GetCurrent(), modeRuns(modes)
		same := known && p.modes.GetCurrent() == current && modeRuns(p.modes) == running
		p.modes = modes
		if same || !known && current == "" {
			return nil
		}
		text := "no mode"
		if current != "" {
			text = "mode " + clean.Line(current, 64) + word(!running, " (drifted)")
		}
		return []news{{text, modeNews{"mode", clean.Line(current, 64), running}}}
	}
}
