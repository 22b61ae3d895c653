package dialer_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"testing"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/traps"
)

// TestTraps is NETS-1 in a network in which every forbidden address answers: in every spelling, behind redirects and behind names that
// change their addresses between two look-ups, none gets a packet, and of the requests that are allowed none is refused.
func TestTraps(t *testing.T) {
	trap := traps.New(t)
	if trap == nil {
		return
	}
	d := trapped(t, nil)
	tried := 0
	for _, raw := range trap.Attacks() {
		tried++
		if answer, err := get(d, raw); err == nil && dialer.Special(answer.Address.Addr()) != "" {
			t.Errorf("%s is answered by %s", raw, answer.Address)
		} else if refused := (*destination.Error)(nil); err != nil && !errors.As(err, &refused) {
			t.Errorf("%s: %T %v", raw, err, err)
		}
	}
	allowed := 0
	for i := range 1000 {
		if answer, err := get(d, traps.Allowed(i)); err == nil && answer.Status == http.StatusOK && string(answer.Body) == "in" {
			allowed++
		} else if allowed == i {
			t.Errorf("%s: %+v %v", traps.Allowed(i), answer, err)
		}
	}
	packets := trap.Forbidden(nobody)
	t.Logf("%d attacks, %d packets to forbidden addresses; %d of 1000 allowed requests answered", tried, packets, allowed)
	least := 4000
	if platformtest.Full() {
		least = 20_000
	}
	if packets != 0 || allowed != 1000 || tried < least {
		t.Errorf("%d attacks, %d packets to forbidden addresses; %d of 1000 allowed requests answered", tried, packets, allowed)
	}
}

// TestNamesOffTheList: a name that the list does not hold is not even looked up.
func TestNamesOffTheList(t *testing.T) {
	trap := traps.New(t)
	if trap == nil {
		return
	}
	const listed = "public-1." + traps.Names
	d := trapped(t, destination.Only(destination.Destination{Host: listed, Port: 80}))
	for _, raw := range []string{
		"http://secret-data.evil.test/", traps.Allowed(2), "http://a." + listed + "/", "http://" + listed + ":443/", "https://" + listed + "/",
		"http://93.184.216.1/", traps.Allowed(1) + "redirect?to=" + url.QueryEscape("http://secret-data.evil.test/"),
	} {
		if answer, err := get(d, raw); !ruled(err, destination.RuleDestination) {
			t.Errorf("%s: %+v, %v", raw, answer, err)
		}
	}
	if _, err := get(d, traps.Allowed(1)); err != nil {
		t.Error(err)
	}
	if asked := slices.DeleteFunc(trap.Asked(), func(name string) bool { return name == listed+"." }); len(asked) > 0 {
		t.Errorf("%q were looked up", asked)
	}
}

// nobody has an address that may be dialled though it is a trap.
func nobody(netip.AddrPort) bool { return false }

// trapped is a dialer in a network of traps; without allow it may go wherever it is told.
func trapped(t *testing.T, allow func(context.Context, destination.Destination) error) *dialer.Dialer {
	t.Helper()
	if allow == nil {
		allow = func(context.Context, destination.Destination) error { return nil }
	}
	d, err := dialer.New(dialer.Config{Allow: allow, Redirects: 3})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// resolver asks the name server at an address.
func resolver(at string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp4", at)
	}}
}

func ruled(err error, rule destination.Rule) bool {
	refused := (*destination.Error)(nil)
	return errors.As(err, &refused) && refused.Rule == rule
}

func get(d *dialer.Dialer, raw string) (*dialer.Answer, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, &destination.Error{Rule: destination.RuleURL, Why: "net/url does not even read it"}
	}
	return d.Do(&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}})
}
