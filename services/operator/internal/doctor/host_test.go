package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/catalog"
)

func services(drivers ...string) *catalog.Catalog {
	c := &catalog.Catalog{Digest: "sha256:aa"}
	for _, d := range drivers {
		c.Services = append(c.Services, &catalog.Service{ID: d, Driver: d})
	}
	return c
}

func TestExamineHost(t *testing.T) {
	root := t.TempDir()
	put := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("with/proc/driver/nvidia/version")
	put("with/run/systemd/private")
	put("with/run/user/" + strconv.Itoa(os.Getuid()) + "/systemd/private")
	put("with/dead.sock")
	l, err := net.Listen("unix", filepath.Join(root, "with", "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	gpus := func(source string) *executorv1.GetStatusResponse {
		return &executorv1.GetStatusResponse{GpuSource: source, Gpus: 1, CatalogueDigest: "sha256:aa"}
	}
	for _, c := range []struct {
		name, row, root string
		host            Host
		// want is "" where nothing is to be said.
		want Level
	}{
		{"a mistake", "catalogue", "", Host{CatalogError: errors.New("c.yaml:3:1: unknown key\nand more")}, Bad},
		{"not readable", "catalogue", "", Host{CatalogError: fs.ErrPermission}, Warning},
		{"another one in force", "catalogue", "", Host{Catalog: services(), Status: &executorv1.GetStatusResponse{CatalogueDigest: "sha256:bb"}}, Warning},
		{"in force", "catalogue", "", Host{Catalog: services(), Status: gpus("nvml")}, Good},
		{"the executor is down", "gpu", "", Host{}, ""},
		{"nvml", "gpu", "with", Host{Status: gpus("nvml")}, Good},
		{"nvidia-smi", "gpu", "with", Host{Status: gpus("nvidia-smi")}, Warning},
		{"simulated beside a driver", "gpu", "with", Host{Status: gpus("simulated")}, Warning},
		{"simulated", "gpu", "without", Host{Status: gpus("simulated")}, Good},
		{"none beside a driver", "gpu", "with", Host{Status: gpus("none found")}, Bad},
		{"none", "gpu", "without", Host{Status: gpus("none found")}, Warning},
		{"no unit", "systemd", "without", Host{Catalog: services("process")}, ""},
		{"no systemd", "systemd", "without", Host{Catalog: services("systemd")}, Bad},
		{"no user manager", "systemd", "without", Host{Catalog: services("systemd"), UserManager: true}, Bad},
		{"systemd", "systemd", "with", Host{Catalog: services("systemd")}, Good},
		{"user manager", "systemd", "with", Host{Catalog: services("systemd"), UserManager: true}, Good},
		{"no container", "docker", "with", Host{Catalog: services("process")}, ""},
		{"no socket is named", "docker", "with", Host{Catalog: services("docker")}, Bad},
		{"the socket is missing", "docker", "with", Host{Catalog: services("docker"), DockerSocket: "/none.sock"}, Bad},
		{"nobody listens", "docker", "with", Host{Catalog: services("docker"), DockerSocket: "/dead.sock"}, Bad},
		{"it answers to everybody", "docker", "with", Host{Catalog: services("docker"), DockerSocket: "/d.sock"}, Warning},
		{"enforced", "network", "", Host{}, ""},
		{"not enforced", "network", "", Host{Unenforced: []string{"chat"}}, Warning},
	} {
		t.Run(c.row+": "+c.name, func(t *testing.T) {
			cfg := Config{Host: c.host, Root: filepath.Join(root, c.root)}
			var found []Finding
			for _, check := range []func(context.Context, Config) []Finding{catalogFile, gpuSource, systemd, docker, network} {
				found = append(found, check(t.Context(), cfg)...)
			}
			i := slices.IndexFunc(found, func(f Finding) bool { return f.Name == c.row })
			switch {
			case i < 0 && c.want == "":
			case i < 0 || found[i].Level != c.want:
				t.Errorf("found %+v, want %s %q", found, c.row, c.want)
			case found[i].Level != Good && found[i].Do == "":
				t.Errorf("%+v does not say what to do", found[i])
			}
		})
	}
}
