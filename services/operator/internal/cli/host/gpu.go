package host

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/bars"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/live"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
)

// barWidth is a bar's width where there is no terminal to fit it into, and the most anywhere.
const (
	barWidth    = 60
	maxBarWidth = 100
)

func (a *app) gpuCommand() *cobra.Command {
	return a.orWatch(&cobra.Command{
		Use:     "gpu",
		Aliases: []string{"gpus"},
		Short:   "GPUs: a bar of each one's memory, and the programs on it",
		Long: `Shows each GPU with its memory as a bar: what services use, what they declared and do not use yet, what
programs use that are no service of this host, what is free, and what the driver keeps. Below stands every
program that holds memory, with its user. Measured numbers are at most a second old.

Simulated GPUs come from the catalogue and say so.`,
		Example: "  durward gpu\n  durward gpu -w\n  durward gpu --json | jq '.gpus[].gpu | {index, memory_free_mib}'",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*executorv1.GetHostResponse, error) {
			return s.Executor.GetHost(ctx, &executorv1.GetHostRequest{})
		}, func(host *executorv1.GetHostResponse) {
			for _, line := range a.hostLines(a.Out, host, a.width(a.Out), true) {
				a.Out.Printf("%s\n", line)
			}
		}),
	}, watched{"gpu"})
}

// width is how wide a bar may be on the printer's terminal.
func (a *app) width(out *output.Printer) int {
	if !output.IsTerminal(out.Out) {
		return barWidth
	}
	width, _ := live.Below(out.Out).Size()
	return min(max(width-4, 20), maxBarWidth)
}

// hostLines lays out the GPUs; with programs, each is listed.
func (a *app) hostLines(out *output.Printer, host *executorv1.GetHostResponse, width int, programs bool) []string {
	if len(host.GetGpus()) == 0 {
		return []string{cli.GPUWords(host.GetSource(), 0, false, cli.DriverFound())}
	}
	var lines []string
	for _, holders := range host.GetGpus() {
		lines = append(lines, gpuLines(out, holders.GetGpu(), host.GetSource(), width)...)
		if programs {
			lines = append(lines, programLines(out, holders)...)
		}
	}
	lines = append(lines, legend(out))
	if total := host.GetMemoryTotalMib(); total > 0 {
		lines = append(lines, "main memory "+bars.Size(host.GetMemoryAvailableMib())+" available"+out.Dim(" of "+bars.Size(total)))
	}
	return lines
}

// gpuLines is one GPU: its name and health, its bar, and the bar in numbers.
func gpuLines(out *output.Printer, g *executorv1.Gpu, source string, width int) []string {
	title := out.Bold("GPU "+strconv.FormatUint(uint64(g.GetIndex()), 10)) + "  " + clean.Line(g.GetName(), 64)
	from := clean.Line(source, 32)
	if g.GetSimulated() {
		from = "simulated"
	}
	title += out.Dim("  " + from)
	if g.GetProblem() != "" {
		return []string{title, "  " + out.Red(clean.Line(g.GetProblem(), 200))}
	}
	for _, reading := range []struct {
		value *uint32
		unit  string
	}{{g.UtilisationPercent, "% busy"}, {g.TemperatureC, "°C"}, {g.PowerW, "W"}} {
		if reading.value != nil {
			title += "  " + strconv.FormatUint(uint64(*reading.value), 10) + " " + reading.unit
		}
	}
	if g.GetEccErrors() > 0 {
		title += "  " + out.Red(fmt.Sprintf("%d uncorrected memory errors", g.GetEccErrors()))
	}
	if g.GetLastXid() > 0 {
		title += "  " + out.Red(fmt.Sprintf("driver error %d (XID)", g.GetLastXid()))
	}
	sizes := bars.Of(g)
	return []string{title, "  " + bars.Draw(sizes, width, barPaint(out)), "  " + sizeWords(out, g, sizes)}
}

// barPaint colours a bar's stretches.
func barPaint(out *output.Printer) func(bars.Kind, string) string {
	return bars.Paint(out.Green, out.Red, out.Yellow, out.Dim)
}

// sizeWords is a bar in numbers.
func sizeWords(out *output.Printer, g *executorv1.Gpu, s bars.Sizes) string {
	parts := []string{bars.Size(s[bars.Services]) + " by services"}
	if n := s[bars.Claimed]; n > 0 {
		parts = append(parts, out.Yellow(bars.Size(n)+" more claimed"))
	}
	if n := s[bars.Foreign]; n > 0 {
		parts = append(parts, out.Red(bars.Size(n)+" foreign"))
	}
	parts = append(parts, bars.Size(g.GetMemoryFreeMib())+" free")
	if n := s[bars.Reserved]; n > 0 {
		parts = append(parts, bars.Size(n)+" the driver's")
	}
	return strings.Join(parts, ", ") + out.Dim(" of "+bars.Size(g.GetMemoryTotalMib()))
}

// programLines lists the programs on a GPU; where the driver names none, the services that hold memory there.
func programLines(out *output.Printer, holders *executorv1.GpuHolders) []string {
	var lines []string
	for _, p := range holders.GetProcesses() {
		who := cmp.Or(clean.Line(p.GetServiceId(), 64), out.Red("foreign"))
		size := "size not known"
		if p.GetMemoryMib() > 0 {
			size = cli.Mebibytes(p.GetMemoryMib())
		}
		line := fmt.Sprintf("  %s %8d  %s  %s  %s", output.Pad(who, 20), p.GetPid(), output.Pad(size, 14),
			output.Pad(clean.Line(p.GetUser(), 32), 16), clean.Line(p.GetName(), 64))
		lines = append(lines, strings.TrimRight(line, " "))
	}
	if len(lines) == 0 && len(holders.GetGpu().GetServices()) > 0 {
		lines = append(lines, "  "+clean.Line(strings.Join(holders.GetGpu().GetServices(), ", "), 500))
	}
	return lines
}

// legend says what a bar's characters mean.
func legend(out *output.Printer) string {
	paint := barPaint(out)
	parts := output.Each(bars.Kinds(), func(k bars.Kind) string { return paint(k, string(k.Rune())) + out.Dim(" "+k.Word()) })
	return strings.Join(parts, "  ")
}
