package catalog

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/importer/discover"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/containerpolicy"
)

// dockerSocket is where a Docker Engine listens unless the executor's configuration names another.
const dockerSocket = "/run/docker.sock"

// prober is who asks servers what they are, nil where none is asked.
func (imp *importing) prober() *discover.Prober {
	if imp.quiet {
		return nil
	}
	return discover.NewProber()
}

// host is what is known of the host beside its servers.
func (imp *importing) host() discover.Host {
	return discover.Host{Present: imp.present, GPUs: imp.gpus, ContainerUser: imp.given.ContainerUser}
}

const lookLong = `
Only looks: nothing is started, stopped or changed, and nobody is asked but systemd or Docker, nvidia-smi, and each running
server at its own port of 127.0.0.1 (GET /v1/models, /props, /api/version, /version, /health; --no-ask leaves that out).`

func (a *app) importSystemdCommand(imp *importing) *cobra.Command {
	var user bool
	cmd := &cobra.Command{
		Use:   "systemd",
		Short: "From the units of this host that serve models",
		Long: `Looks through the services that systemd has loaded: those whose program is a known engine (llama-server, vLLM, SGLang,
Ollama), and those whose processes hold memory of a GPU. Each becomes a service that is that unit, as it is. Of a unit's environment
a few values are read that say how an engine runs; the names of all others are mentioned, their values never.
` + lookLong + "\n" + importLong,
		Example: "  durward catalog import systemd\n  durward catalog import systemd --user --out -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			manager := "system"
			if f, _, err := a.ExecutorFile(); err == nil && !cmd.Flags().Changed("user") {
				manager = cmp.Or(f.Systemd.Manager, manager)
			} else if user {
				manager = "user"
			}
			p, err := a.beginImport(cmd, imp, "the units of this host's systemd ("+manager+")")
			if err != nil {
				return err
			}
			servers, passed, err := discover.Systemd{Manager: manager, Holders: imp.held, Prober: imp.prober()}.Servers(cmd.Context())
			if err != nil {
				return cli.Failed("Is this host run by systemd, and is its D-Bus there? Nothing was written.", "%s", clean.Line(err.Error(), 300))
			}
			imp.host().Units(p, servers, passed)
			return a.propose(cmd.Context(), imp, p)
		},
	}
	cmd.Flags().BoolVar(&user, "user", false, "your own units instead of the host's (default: as executor.yaml says)")
	cmd.Flags().BoolVar(&imp.quiet, "no-ask", false, "ask no server what it is")
	return cmd
}

func (a *app) importDockerCommand(imp *importing) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "docker",
		Short: "From the containers of this host that serve models",
		Long: `Looks through Docker's containers, stopped ones too: those that ask for GPUs, and those that run a known engine. One with the
label durward.service=ID is taken over as it is, if it is no wider than what the executor lets a container be. Of any other an entry
is proposed by which the executor makes a new container of the same image, with what is safe of its settings; what makes a
container as powerful as the host is refused by name.
` + lookLong + "\n" + importLong,
		Example: "  durward catalog import docker\n  durward catalog import docker --socket /run/user/1000/docker.sock --out -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f, _, err := a.ExecutorFile(); err == nil && socket == "" {
				socket = f.Docker.Socket
			}
			socket = cmp.Or(socket, dockerSocket)
			p, err := a.beginImport(cmd, imp, "the containers of Docker at "+socket)
			if err != nil {
				return err
			}
			rules := containerpolicy.Rules{}
			if imp.present != nil {
				rules.Mounts, rules.Environment = imp.present.Containers.Mounts, imp.present.Containers.Environment
			}
			for _, g := range imp.gpus {
				rules.GPUs = append(rules.GPUs, g.UUID)
			}
			containers, passed, err := discover.Docker{Socket: socket, Holders: imp.held, Prober: imp.prober()}.Containers(cmd.Context(), rules)
			if err != nil {
				next := "Nothing was written."
				if strings.Contains(err.Error(), "permission denied") {
					next = "Whoever may speak to Docker is root on this host; run it as such a user. " + next
				}
				return cli.Failed(next, "%s", clean.Line(err.Error(), 300))
			}
			imp.host().Containers(p, containers, passed)
			return a.propose(cmd.Context(), imp, p)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "the Docker Engine's socket (default: as executor.yaml says, or "+dockerSocket+")")
	cmd.Flags().BoolVar(&imp.quiet, "no-ask", false, "ask no server what it is")
	return cmd
}
