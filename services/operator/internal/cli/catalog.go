package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
)

// CatalogPlace is which catalog is meant, and how it is read.
type CatalogPlace struct {
	Path        string
	Development bool
}

// executorFile is what of the executor's configuration matters here; the executor itself checks the rest.
type executorFile struct {
	Catalog     string `yaml:"catalogue"`
	ProgramsDir string `yaml:"programs_dir"`
	InContainer bool   `yaml:"in_container"`
	Systemd     struct {
		Manager string `yaml:"manager"`
	} `yaml:"systemd"`
	Docker struct {
		Socket string `yaml:"socket"`
	} `yaml:"docker"`
	GPU struct {
		LlamaFitParams string `yaml:"llama_fit_params"`
	} `yaml:"gpu"`
}

// installedExecutor is the executor's configuration where durward install laid it out: anybody may read it.
const installedExecutor = "/etc/durward/executor.yaml"

// ExecutorFile reads the executor's configuration: this home's, or else the host's.
func (a *App) ExecutorFile() (f executorFile, installed bool, err error) {
	name := a.Home.Config("executor")
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if host, hostErr := os.ReadFile(installedExecutor); hostErr == nil {
			name, raw, err, installed = installedExecutor, host, nil, true
		}
	}
	if err != nil {
		return f, false, err
	}
	if err := yaml.Unmarshal(raw, &f); err != nil || f.Catalog == "" {
		return f, installed, fmt.Errorf("%s names no catalogue", name)
	}
	return f, installed, nil
}

// Resolve fills in which catalog is meant and how the executor would read it. changed: --development was given.
func (p CatalogPlace) Resolve(a *App, changed bool) (string, catalog.Options, error) {
	bin, err := OwnFolder()
	if err != nil {
		return "", catalog.Options{}, err
	}
	opts := catalog.Options{ProgramsDir: bin, Development: p.Development, UID: os.Getuid()}
	f, installed, err := a.ExecutorFile()
	if errors.Is(err, fs.ErrNotExist) && p.Path == "" && !a.Home.Exists() {
		_, err = a.Config()
		return "", opts, err
	}
	if err != nil && p.Path == "" {
		return "", opts, Usage("Name the catalogue: --catalogue PATH", "%s", clean.Block(err.Error(), 500))
	}
	opts.ProgramsDir = cmp.Or(f.ProgramsDir, opts.ProgramsDir)
	if opts.InContainer = f.InContainer; opts.InContainer {
		opts.Drivers = []string{catalog.DriverDocker, catalog.DriverNull}
	}
	if u, err := user.Lookup(install.User("executor")); err == nil && installed {
		if uid, err := strconv.Atoi(u.Uid); err == nil {
			opts.UID = uid
		}
	}
	if !changed {
		opts.Development = !installed && isDevelopment(a.Home)
	}
	return cmp.Or(p.Path, f.Catalog), opts, nil
}

// Flags lets a command's flags say which catalog is meant.
func (p *CatalogPlace) Flags(flags *pflag.FlagSet) {
	flags.StringVar(&p.Path, "catalogue", "", "the catalogue's file or folder (default: what config/executor.yaml names)")
	flags.BoolVar(&p.Development, "development", false, "accept services without run_as (default: as this installation was made)")
}

func (p *CatalogPlace) Of(a *App, cmd *cobra.Command) (string, catalog.Options, error) {
	return p.Resolve(a, cmd.Flags().Changed("development"))
}

// Load reads the catalog there, which must be good, and says where that is.
func (p *CatalogPlace) Load(a *App, cmd *cobra.Command) (string, *catalog.Catalog, error) {
	path, opts, err := p.Of(a, cmd)
	if err != nil {
		return "", nil, err
	}
	c, err := catalog.Load(path, opts)
	if err != nil {
		return "", nil, a.BadCatalog(path, err)
	}
	return path, c, nil
}

// problemJSON is one thing that is wrong with a catalog, in --json.
type problemJSON struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	What   string `json:"what"`
}

// BadCatalog says what is wrong with a catalog.
func (a *App) BadCatalog(path string, err error) error {
	problems := catalog.AsProblems(err)
	if a.Machine() {
		list := output.Each(problems, func(p catalog.Problem) problemJSON { return problemJSON{p.File, p.Line, p.Column, p.What} })
		if wrong, ok := errors.AsType[*config.Error](err); ok {
			list = append(list, problemJSON{wrong.File, wrong.Line, wrong.Column, clean.Block(wrong.What, 2000)})
		} else if len(problems) == 0 {
			list = append(list, problemJSON{File: path, What: clean.Block(err.Error(), 2000)})
		}
		if err := a.Show(map[string]any{"path": path, "good": false, "problems": list}, nil); err != nil {
			return err
		}
		return Failed("", "the catalogue is not good: %s", clean.Count(len(list), "mistake"))
	}
	if _, none := os.Stat(path); errors.Is(none, fs.ErrNotExist) {
		return Failed("Name a file or a folder, or none for the one that config/executor.yaml names.", "%s: there is no such catalogue", clean.Visible(path))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || len(problems) == 0 {
		return Failed("", "%s", clean.Block(err.Error(), 2000))
	}
	for _, p := range problems {
		a.Out.Printf("%s %s\n", a.Out.Red("✗"), clean.Line(p.Error(), 1000))
	}
	return Failed("A wrong service, model or mode is disabled, with what needs it. After any other mistake the last good catalogue stays in force.", "the catalogue is not good: %s",
		clean.Count(len(problems), "mistake"))
}
