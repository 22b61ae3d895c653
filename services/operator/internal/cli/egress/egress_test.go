package egress

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/platformtest/testfile"
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
	testfile.Write(t, config, "listen: x\nlocal: [\"127.0.0.1:8080\", \"[::1]:80\"]\n")
	for domain, want := range map[string]bool{
		"127.0.0.1": false, "127.0.0.1:8080": false, "[::1]:80": false, "127.0.0.1:8081": true, "127.0.0.2": true, "[::1]:81": true,
		"docs.example": false, "localhost": false, "93.184.216.34": false, "93.184.216.34:8443": false, "[2606:4700::1111]:443": false,
	} {
		if got := neverDialled(domain, config); got != want {
			t.Errorf("%s: never dialled %t, want %t", domain, got, want)
		}
	}
}

// destinations is an egress that judges what is no URL, and one that is.
type destinations struct{ egressv1.ControlServiceClient }

func (destinations) TestURL(_ context.Context, r *egressv1.TestURLRequest, _ ...grpc.CallOption) (*egressv1.TestURLResponse, error) {
	if r.GetUrl() == "foo" {
		return &egressv1.TestURLResponse{Verdict: "refused", Rule: "url", Why: "it is no URL"}, nil
	}
	return &egressv1.TestURLResponse{Verdict: "asks", Destination: "docs.example:443", Rule: "destination", Why: "it is on no list"}, nil
}

func TestTellsTheDestinationThatThereIs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"foo":                   "refused\nit is no URL (rule: url)\n",
		"https://docs.example/": "asks  docs.example:443\nit is on no list (rule: destination)\n",
	} {
		core, out, _ := clitest.Printing(false)
		err := (&app{core}).test(t.Context(), &cli.Session{Peers: &peers.Peers{Egress: destinations{}}}, &egressv1.TestURLRequest{Url: url})
		if err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", url, out, err)
		}
	}
}

// TestStaysBlocked: what is blocked for all, or for one of those for whom a domain is to be allowed, is found.
func TestStaysBlocked(t *testing.T) {
	t.Parallel()
	list, err := destination.ParseList(destination.Source{File: "domains.yaml"}, []byte(`block:
  - all.example
  - {domain: agent.example, agents: [coder]}
  - {domain: both.example, clients: [cursor], agents: [coder]}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		domain          string
		clients, agents []string
		want            bool
	}{
		{"all.example", nil, []string{"reader"}, true},
		{"agent.example:443", nil, []string{"reader", "coder"}, true},
		{"agent.example", []string{"cursor"}, []string{"coder"}, true},
		{"both.example", []string{"cursor"}, []string{"coder"}, true},
		{"agent.example", nil, nil, false},
		{"agent.example", nil, []string{"reader"}, false},
		{"both.example", []string{"other"}, []string{"coder"}, false},
	} {
		if _, got := staysBlocked(list, c.domain, c.clients, c.agents, ""); got != c.want {
			t.Errorf("%s for %v, %v: blocked %t", c.domain, c.clients, c.agents, got)
		}
	}
}

func TestWhose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		clients, agents []string
		user, want      string
	}{
		{nil, nil, "", ""},
		{[]string{"cursor", "ci"}, nil, "", " of cursor, ci"},
		{[]string{"cursor"}, []string{"planner"}, "alice", " named planner of cursor"},
		{nil, []string{"planner"}, "", " named planner"},
		{nil, nil, "alice", " of alice's clients"},
	} {
		if got := whose(c.clients, c.agents, c.user); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
