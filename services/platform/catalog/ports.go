package catalog

import (
	"fmt"

	"github.com/goccy/go-yaml"
)

// Ports returns the ports of the services in a catalogue, a file or a folder, as it is there now. It judges nothing else: those of entries
// that are wrong or disabled are among them. An error says that they are not known.
func Ports(path string) (map[uint16]bool, error) {
	files, err := Read(path)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w", err)
	}
	ports := map[uint16]bool{}
	for _, file := range files {
		var in struct {
			Services []struct {
				Port uint16 `yaml:"port"`
			} `yaml:"services"`
		}
		if err := yaml.Unmarshal(file.Data, &in); err != nil {
			return nil, fmt.Errorf("catalogue: %s is not YAML that can be read", file.Name)
		}
		for _, service := range in.Services {
			ports[service.Port] = true
		}
	}
	return ports, nil
}
