package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/picture"
	"durward.internal/services/operator/internal/live"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
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
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
			return a.watch(ctx, s, everything)
		}),
	}
}

// watched are the kinds of what is shown while it changes. Problems always are.
type watched []string

var everything = watched{"service", "gpu", "mode", "operation", "dangerous"}

func (w watched) has(kind string) bool { return slices.Contains(w, kind) }

// orWatch gives a command that reads -w, by which it stays and shows what changes of some kinds.
func (a *app) orWatch(cmd *cobra.Command, kinds watched) *cobra.Command {
	var stay bool
	cmd.Flags().BoolVarP(&stay, "watch", "w", false, "stay, and show what changes (with -o json: one object a line)")
	read := cmd.RunE
	watch := a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error { return a.watch(ctx, s, kinds) })
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if stay {
			return watch(cmd, args)
		}
		return read(cmd, args)
	}
	return cmd
}

func (a *app) watch(ctx context.Context, s *cli.Session, kinds watched) error {
	// The first answer says whether there is anything to watch at all.
	list, err := s.Executor.Tools.ListServices(ctx, &executorv1.ListServicesRequest{})
	if err != nil {
		return err
	}
	p := picture.New()
	p.Services = list.GetServices()
	// Which mode the host is in can change when a service does; asking again and again would fill the log with reads.
	stirred := make(chan struct{}, 1)
	stir := func() {
		select {
		case stirred <- struct{}{}:
		default:
		}
	}
	sources := []func(context.Context, func(picture.Change) bool){
		func(ctx context.Context, tell func(picture.Change) bool) { picture.WatchServices(ctx, s, stir, tell) },
	}
	more := map[string]func(context.Context, func(picture.Change) bool){
		"gpu": picture.WatchHost(s),
		"mode": func(ctx context.Context, tell func(picture.Change) bool) {
			picture.Ask(ctx, "modes", picture.OnceStirred(stirred), tell, func(ctx context.Context) (picture.Change, error) {
				modes, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
				return picture.ModesChange(modes), err
			})
		},
		"operation": func(ctx context.Context, tell func(picture.Change) bool) {
			picture.WatchOperations(ctx, a.App, s, stir, tell)
		},
		"dangerous": func(ctx context.Context, tell func(picture.Change) bool) {
			picture.WatchDanger(ctx, s, a.Typed(), tell)
		},
	}
	for _, kind := range kinds {
		if source, ok := more[kind]; ok {
			sources = append(sources, source)
		}
	}
	changes, end := picture.Gather(ctx, sources...)
	defer end()
	if a.Machine() || !a.Out.Draws {
		return a.watchLines(ctx, p, changes, kinds)
	}
	return a.watchScreen(ctx, p, changes, kinds)
}

// watchLines writes a line for each piece of news.
func (a *app) watchLines(ctx context.Context, p *picture.Picture, changes <-chan picture.Change, kinds watched) error {
	for {
		select {
		case <-ctx.Done():
			return nil // Ctrl-C is how watching ends
		case c := <-changes:
			p.Forget(a.Now())
			for _, n := range c(p) {
				if n.Kind() == "service" && !kinds.has("service") {
					continue // modes are asked for when a service changes
				}
				if err := a.ShowLine(n.Value, func() { a.Out.Printf("%s  %s\n", a.Now().Format(time.TimeOnly), n.Text) }); err != nil {
					return err
				}
			}
		}
	}
}

// watchScreen draws the whole picture whenever it changes, and at least each second, since times move.
func (a *app) watchScreen(ctx context.Context, p *picture.Picture, changes <-chan picture.Change, kinds watched) error {
	area := live.Whole(a.Out.Out)
	defer area.Close()
	suspended, end := live.Suspensions()
	defer end()
	tick := time.NewTicker(cli.Redraw)
	defer tick.Stop()
	dirty, drawn := true, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-changes:
			c(p)
			dirty = true
		case <-suspended:
			area.Suspend()
			dirty = true
		case now := <-tick.C:
			if dirty || now.Sub(drawn) >= time.Second {
				p.Forget(a.Now())
				width, _ := area.Size()
				area.Draw(a.screenLines(p, width, kinds))
				dirty, drawn = false, now
			}
		}
	}
}

// screenLines lays the picture out.
func (a *app) screenLines(p *picture.Picture, width int, kinds watched) []string {
	out, now := a.Out, a.Now()
	mode := ""
	if kinds.has("mode") {
		mode = "  no mode"
	}
	if current := p.Modes.GetCurrent(); current != "" {
		mode = "  mode " + clean.Line(current, 64)
		if !cli.ModeRuns(p.Modes) {
			mode += out.Yellow(" (drifted)")
		}
	}
	lines := []string{out.Bold("durward") + mode + "  " + out.Dim(now.Format(time.TimeOnly)+"  Ctrl-C ends")}
	if p.Danger != "" {
		lines = append(lines, out.Red(p.Danger))
	}
	for _, source := range slices.Sorted(maps.Keys(p.Problems)) {
		lines = append(lines, out.Red(source+": "+p.Problems[source]))
	}
	if n := len(p.Waiting); n > 0 {
		lines = append(lines, out.Yellow(fmt.Sprintf("%d waiting for you: %s approvals", n, a.Typed())))
	}
	lines = append(lines, "")
	// What moves comes first: a host's GPUs and services may be more than the screen holds.
	for _, id := range sortedOperations(p.Ops) {
		w := p.Ops[id]
		lines = append(lines, w.Title)
		for _, line := range w.Steps.Lines(out, now) {
			lines = append(lines, "  "+line)
		}
		lines = append(lines, "")
	}
	if p.Host != nil {
		lines = append(lines, a.hostLines(out, p.Host, min(max(width-4, 20), maxBarWidth), false)...)
		lines = append(lines, "")
	}
	if !kinds.has("service") {
		return lines
	}
	for _, service := range p.Services {
		lines = append(lines, fmt.Sprintf("%s %s %s", output.Pad(clean.Line(service.GetServiceId(), 64), 28),
			output.Pad(a.StateColour(service.GetState()), 10), out.Dim(clean.Line(service.GetModel(), 128))))
	}
	return lines
}

// sortedOperations orders operations by when they were asked for.
func sortedOperations(ops map[string]*picture.Watched) []string {
	return slices.SortedFunc(maps.Keys(ops), func(x, y string) int {
		return cmp.Or(ops[x].Op.GetAskedAt().AsTime().Compare(ops[y].Op.GetAskedAt().AsTime()), strings.Compare(x, y))
	})
}
