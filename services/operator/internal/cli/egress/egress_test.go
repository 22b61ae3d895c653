package egress

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAddressesThatAreNeverDialled: to allow them does nothing, unless egress' own file names them.
func TestAddressesThatAreNeverDialled(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "egress.yaml")
	for _, domain := range []string{"127.0.0.1", "127.0.0.1:8080", "10.0.0.7", "192.168.1.2:443", "169.254.169.254", "[::1]:80"} {
		if !neverDialled(domain, config) {
			t.Errorf("%s is dialled without egress.yaml", domain)
		}
	}
	if err := os.WriteFile(config, []byte("listen: x\nlocal: [\"127.0.0.1:8080\", \"[::1]:80\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for domain, want := range map[string]bool{
		"127.0.0.1": false, "127.0.0.1:8080": false, "[::1]:80": false, "127.0.0.1:8081": true, "127.0.0.2": true, "[::1]:81": true,
		"docs.example": false, "localhost": false, "93.184.216.34": false, "93.184.216.34:8443": false, "[2606:4700::1111]:443": false,
	} {
		if got := neverDialled(domain, config); got != want {
			t.Errorf("%s: never dialled %t, want %t", domain, got, want)
		}
	}
}
