package catalog

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/catalogfile"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/vram"
)

func (a *app) catalogCommand() *cobra.Command {
	var place cli.CatalogPlace
	cmd := &cobra.Command{
		Use:     "catalog",
		Aliases: []string{"catalogue"},
		Short:   "The catalogue: what this host may run; check, show, add, remove, import",
		Long: `The catalogue is a file, or a folder of .yaml files, in which you say what the executor may run: GPUs, models,
services, modes. No agent and no RPC changes it. The executor reads it again within a second of a change. A
service, model or mode whose entry is wrong is disabled, with what needs it, until you correct it; a file that
cannot be read as a whole changes nothing of what was in force.`,
		Example: `  durward catalog check
  durward catalog show demo-chat
  durward catalog add service coder --port 8001 --gpus 0 --vram 40000 -- vllm serve Qwen/Qwen3-32B --port 8001
  durward catalog add mode coding coder demo-embed`,
	}
	place.Flags(cmd.PersistentFlags())
	cmd.AddCommand(a.catalogCheckCommand(&place), a.catalogShowCommand(&place), a.catalogAddCommand(&place), a.catalogRemoveCommand(&place), a.catalogImportCommand(&place))
	return cmd
}

func (a *app) catalogCheckCommand(place *cli.CatalogPlace) *cobra.Command {
	return &cobra.Command{
		Use:   "check [PATH]",
		Short: "Whether the catalogue is good; every mistake with its line",
		Long: `Reads the catalogue as the executor would and says everything that is wrong, as file:line:column. Of a good
one it says what the executor will not tell you: modes that declare more than a GPU has, network
expectations that nothing enforces, and whether the running executor uses this very catalogue. A proposal of
durward catalog import is read beside the present catalogue, as it would stand there.

Exit code 1 when it is not good.`,
		Example: "  durward catalog check\n  durward catalog check ./catalogue.yaml --development",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, beside, c, err := a.checked(cmd, place, args)
			if err != nil {
				return err
			}
			return a.goodCatalog(cmd.Context(), path, beside, c)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
}

// goodCatalog says what is worth knowing of a good one. beside is the catalog that a proposal was read with.
func (a *app) goodCatalog(ctx context.Context, path, beside string, c *catalog.Catalog) error {
	remarks := catalogRemarks(c)
	inForce, known := false, false
	if beside == "" {
		var disabled []string
		if inForce, known, disabled = a.inForce(ctx, c.Digest); inForce {
			for _, entry := range disabled {
				remarks = append(remarks, fmt.Sprintf("the executor has %s disabled, which was wrong when it looked; it looks again each minute", entry))
			}
		}
	} else {
		path += " beside " + beside
	}
	value := map[string]any{
		"path": path, "good": true, "digest": c.Digest, "remarks": cli.NonNil(remarks), "in_force": nil,
		"gpus": len(c.GPUs), "models": len(c.Models), "services": len(c.Services), "modes": len(c.Modes),
	}
	if known {
		value["in_force"] = inForce
	}
	return a.Show(value, func() {
		a.Out.Printf("%s %s: %s, %s, %s, %s\n", a.Out.Green("✓"), path, clean.Count(len(c.GPUs), "GPU"), clean.Count(len(c.Models), "model"),
			clean.Count(len(c.Services), "service"), clean.Count(len(c.Modes), "mode"))
		for _, remark := range remarks {
			a.Out.Printf("%s %s\n", a.Out.Yellow("!"), remark)
		}
		switch {
		case known && inForce:
			a.Out.Printf("%s the executor uses it\n", a.Out.Green("✓"))
		case known:
			a.Out.Printf("%s the executor uses another one; if it still does in a second, its log says why: %s\n", a.Out.Yellow("!"),
				cli.ItsLog(a.Home, "executor"))
		}
	})
}

// inForce reports whether the running executor uses the catalog with this digest, if it can be asked, and what it has disabled.
func (a *app) inForce(ctx context.Context, digest string) (inForce, known bool, disabled []string) {
	if !a.Home.Exists() {
		return false, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cli.StatusPatience)
	defer cancel()
	err := a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		status, err := s.Executor.GetStatus(ctx, &executorv1.GetStatusRequest{})
		inForce = status.GetCatalogueDigest() == digest
		disabled = output.Each(status.GetDisabled(), func(d *executorv1.DisabledEntry) string {
			return clean.Line(strings.TrimSpace(d.GetKind()+" "+d.GetId()), 100)
		})
		return err
	})
	a.RequestID = ""
	return inForce, err == nil, disabled
}

// catalogRemarks are what is allowed and still worth a look.
func catalogRemarks(c *catalog.Catalog) []string {
	var out []string
	total := map[uint32]uint32{}
	for _, g := range c.GPUs {
		total[g.Index] = g.MemoryMiB
	}
	for _, m := range c.Modes {
		need := map[uint32]uint32{}
		for _, id := range m.Services {
			s, ok := c.Lookup(id)
			if !ok {
				continue
			}
			seen := s.Visible()
			for _, index := range seen {
				need[index] += catalog.Share(s.VRAMMiB, len(seen))
			}
		}
		for _, g := range c.GPUs {
			// What a real GPU has is measured by the executor.
			if has := total[g.Index]; has > 0 && need[g.Index] > has {
				out = append(out, fmt.Sprintf("mode %s declares %d MiB on GPU %d, which has %d", m.ID, need[g.Index], g.Index, has))
			}
		}
	}
	for _, s := range c.Services {
		if s.Driver == catalog.DriverProcess && (s.Network == catalog.NetworkLoopback || s.Network == catalog.NetworkNone) {
			out = append(out, fmt.Sprintf("service %s expects network %q, which the process driver cannot enforce; "+
				"a systemd unit can: durward service install %s", s.ID, s.Network, s.ID))
		}
		// docs/faq of ollama/ollama: by itself three for each GPU, each new one while it fits.
		const most = "OLLAMA_MAX_LOADED_MODELS"
		if run, err := vram.RunOf(s); err == nil && run.Engine == enginecmd.Ollama && len(s.GPUs) > 0 && s.VRAMMiB == 0 && s.Environment[most] != "1" {
			out = append(out, fmt.Sprintf("service %s: Ollama keeps several models loaded where they fit (%s=1 keeps it to one), and an estimate is of one; "+
				"vram_mib says what it may take in all", s.ID, most))
		}
	}
	return out
}

func (a *app) catalogShowCommand(place *cli.CatalogPlace) *cobra.Command {
	return &cobra.Command{
		Use:   "show [ID]",
		Short: "The catalogue as the executor would read it, or one entry whole",
		Long: `Without ID: what the catalogue defines. With the id of a service, mode or model: the whole entry, every default
filled in, which is what an approver is shown (there with the digest of its program, unit or image).`,
		Example:           "  durward catalog show\n  durward catalog show demo-chat --json | jq .services[0].argv",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeEntries(place),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, c, err := place.Load(a.App, cmd)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return a.showEntry(c, args[0])
			}
			return a.Show(map[string]any{
				"digest": c.Digest, "gpus": cli.NonNil(c.GPUs), "models": cli.NonNil(c.Models), "services": cli.NonNil(c.Services),
				"modes": cli.NonNil(c.Modes), "boot": c.Boot,
			}, func() {
				a.printCatalog(c)
			})
		},
	}
}

func (a *app) showEntry(c *catalog.Catalog, id string) error {
	found := map[string]any{}
	if s, ok := c.Lookup(id); ok {
		found["services"] = []any{s}
	}
	if m, ok := c.Mode(id); ok {
		found["modes"] = []any{m}
	}
	if m, ok := c.Model(id); ok {
		found["models"] = []any{m}
	}
	if len(found) == 0 {
		return cli.Failed(cli.DidYouMean(c.Suggest(id), "See: durward catalog show"), "no service, mode or model has the id %q", clean.Visible(id))
	}
	return a.Show(found, func() {
		for _, kind := range []string{"services", "modes", "models"} {
			for _, entry := range catalogfile.AsList(found[kind]) {
				raw, _ := json.Marshal(entry) // what was read from YAML can be written
				a.Out.Printf("%s\n", a.Out.Bold(strings.TrimSuffix(kind, "s")+" "+clean.Visible(id)))
				for _, line := range approval.Lines(raw) {
					a.Out.Printf("  %s\n", line)
				}
			}
		}
	})
}

func (a *app) printCatalog(c *catalog.Catalog) {
	var rows [][]string
	for _, g := range c.GPUs {
		kind := "real, " + cmp.Or(g.UUID, "by index")
		if g.Simulated {
			kind = "simulated, " + cli.Mebibytes(g.MemoryMiB)
		}
		rows = append(rows, []string{strconv.FormatUint(uint64(g.Index), 10), kind, clean.Line(g.Name, 64)})
	}
	a.section([]string{"GPU", "KIND", "NAME"}, rows)
	rows = nil
	for _, m := range c.Models {
		rows = append(rows, []string{clean.Line(m.ID, 128), clean.Line(m.ServedName, 128), clean.Line(m.Source, 256)})
	}
	a.section([]string{"MODEL", "NAME IN REQUESTS", "SOURCE"}, rows)
	rows = nil
	for _, s := range c.Services {
		model := ""
		if s.Model != nil {
			model = clean.Line(s.Model.ID, 128)
		}
		sleep := s.Sleep
		if sleep == catalog.SleepNone {
			sleep = ""
		}
		rows = append(rows, []string{
			s.ID, s.Driver, cli.OrNothing(s.Port), cli.JoinNumbers(s.GPUs), cli.Mebibytes(s.VRAMMiB), sleep, s.RunAs, model,
		})
	}
	a.section([]string{"SERVICE", "DRIVER", "PORT", "GPUS", "VRAM", "SLEEP", "RUNS AS", "MODEL"}, rows)
	rows = nil
	for _, m := range c.Modes {
		rows = append(rows, []string{m.ID, strings.Join(m.Services, ", "), clean.Line(m.Description, 100)})
	}
	a.section([]string{"MODE", "SERVICES", "ABOUT"}, rows)
	a.Out.Printf("at boot: %s\n", clean.Line(cmp.Or(c.Boot, catalog.BootNone), 64))
}

// section is a table that is left out when it is empty.
func (a *app) section(header []string, rows [][]string) {
	if len(rows) > 0 {
		a.Out.Table(header, rows)
		a.Out.Printf("\n")
	}
}

// completeEntries completes ids from the catalog's own file, without asking any process.
func (a *app) completeEntries(place *cli.CatalogPlace) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.Complete(args, func() (out []string, err error) {
			path, opts, err := place.Of(a.App, cmd)
			if err != nil {
				return nil, err
			}
			c, err := catalog.Load(path, opts)
			if err != nil {
				return nil, err
			}
			for _, s := range c.Services {
				out = append(out, cobra.CompletionWithDesc(s.ID, "service: "+s.Name))
			}
			for _, m := range c.Modes {
				out = append(out, cobra.CompletionWithDesc(m.ID, "mode: "+m.Name))
			}
			for _, m := range c.Models {
				out = append(out, cobra.CompletionWithDesc(m.ID, "model"))
			}
			return out, nil
		})
	}
}
