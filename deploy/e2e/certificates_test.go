package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest"
)

// TestCertificatesOfACompany: an installation goes over to a company's authority, file by file, while programs change things: nothing
// fails until the built-in root is taken away, which connections of its certificates do not outlive, and then all is well again.
func TestCertificatesOfACompany(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Catalog: changedCatalog})
	letChange(h)
	h.StartAll()
	agent := h.Connect(h.AddClient("agent"))
	load := changing(t, h)
	company := platformtest.NewCompany(t)
	now := time.Now()
	until := now.Add(30 * 24 * time.Hour).Truncate(time.Second)
	h.WriteFile("trust/ca.pem", h.ReadFile("trust/ca.pem")+string(company.Root()))
	knows := func(what string, certificate *tls.Certificate, want codes.Code) {
		t.Helper()
		for _, role := range []string{harness.Audit, harness.Vault, harness.Executor} {
			harness.Eventually(t, role+what, func() error {
				conn := h.DialWith(certificate, role)
				defer conn.Close()
				if err := conn.Invoke(t.Context(), "/durward/Nothing", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != want {
					return fmt.Errorf("%w, want %s", err, want)
				}
				return nil
			})
		}
	}
	pair, err := tls.X509KeyPair(company.Issue(h.Identity(harness.Gateway).String(), now.Add(-time.Minute), until))
	must(t, err)
	knows(" trusts the company", &pair, codes.PermissionDenied) // there is no such method

	before, began := load.count(), time.Now()
	files := map[string]string{"operator": h.OperatorIdentity().String()}
	for _, role := range harness.Roles() {
		files[role] = h.Identity(role).String()
	}
	for n := range changers {
		name := fmt.Sprintf("changer-%d", n)
		files["tools/"+name] = h.Identity("tool/" + name).String()
	}
	for dir, id := range files {
		chain, key := company.Issue(id, now.Add(-time.Minute), until)
		h.WriteFile("tls/"+dir+"/key.pem", string(key))
		h.WriteFile("tls/"+dir+"/cert.pem", string(chain))
	}
	ends := func(role string, when time.Time) {
		t.Helper()
		harness.Eventually(t, role+" has the company's certificate", func() error {
			if ends := value(scrape(t, h, role)["durward_certificate_expiry_timestamp_seconds"], nil); ends != float64(when.Unix()) {
				return fmt.Errorf("it ends at %f", ends)
			}
			return nil
		})
	}
	for _, role := range harness.Roles() {
		ends(role, until)
	}
	goesOn := func(when string) {
		t.Helper()
		from := load.count()
		harness.Eventually(t, "changes go on"+when, func() error {
			if n := load.count() - from; n < 10*changers {
				return fmt.Errorf("%d so far", n)
			}
			return nil
		})
	}
	goesOn("")

	// Another authority's, in the same place: named, and not taken up.
	const executors = "tls/" + harness.Executor + "/"
	put := func(issuer *platformtest.Company, from, until time.Time) {
		chain, key := issuer.Issue(h.Identity(harness.Executor).String(), from, until)
		h.WriteFile(executors+"key.pem", string(key))
		h.WriteFile(executors+"cert.pem", string(chain))
	}
	strangers := platformtest.NewCompany(t)
	put(strangers, now.Add(-time.Minute), until)
	for command, says := range map[string]string{"cert status": "no root in ca.pem leads to it", "doctor": "of no use: executor (certificate"} {
		if out := h.Run("", strings.Fields(command)...); out.Code == 0 || !strings.Contains(out.Stdout, says) {
			t.Errorf("%s says of a stranger's certificate: %+v", command, out)
		}
	}
	if pair, err = tls.X509KeyPair(strangers.Issue(h.Identity(harness.Gateway).String(), now.Add(-time.Minute), until)); err != nil {
		t.Fatal(err)
	}
	knows(" refuses the stranger's", &pair, codes.Unavailable)
	goesOn(" with a stranger's certificate in the place of the executor's")

	// The alarm rings below four hours; people are told when two thirds have gone.
	soon := now.Add(3 * time.Hour).Truncate(time.Second)
	put(company, now.Add(-20*time.Hour), soon)
	ends(harness.Executor, soon)
	if out := h.Run("", "doctor"); !strings.Contains(out.Stdout, "due for renewal, and nobody renews them: executor") {
		t.Errorf("doctor says of a certificate that ends soon: %+v", out)
	}
	put(company, now.Add(-time.Minute), until)
	ends(harness.Executor, until)
	goesOn(" afterwards")
	load.end() // it has said what failed
	t.Logf("%d changes in the %s of the rotation", load.count()-before, time.Since(began).Round(time.Millisecond))
	isStatus(t, "ok", agent.Ask("gpu_status", nil))
	h.Durward("cert", "status")

	h.WriteFile("trust/ca.pem", string(company.Root()))
	old := harness.Issue(t, h.CA(), h.Identity(harness.Gateway), 0)
	knows(" lets the built-in authority's in no more", &old, codes.Unavailable)
	harness.Eventually(t, "all is well again", func() error {
		if e := agent.Ask("service_info", demo); e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		if out := h.Run("", "start", harness.DemoService, "--yes"); out.Code != 0 {
			return errors.New(out.Stderr)
		}
		return nil
	})
	h.Durward("audit", "verify")
}

// TestCertificatesOfSPIRE: every process, and in the end the operator's program, has its certificate from a Workload API, which goes over to an authority that no file names;
// agents read and change things meanwhile, and a process that starts afterwards is known to the others.
func TestCertificatesOfSPIRE(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	first, second := platformtest.NewCompany(t), platformtest.NewCompany(t)
	roots := h.ReadFile("trust/ca.pem") + string(first.Root()) // the operator's program has its certificate from the built-in authority
	h.WriteFile("trust/ca.pem", roots)
	apis := map[string]*platformtest.WorkloadAPI{}
	now := time.Now().Truncate(time.Second)
	identityOf := func(role string) string {
		if role == "operator" {
			return h.OperatorIdentity().String()
		}
		return h.Identity(role).String()
	}
	send := func(by *platformtest.Company, until time.Time, roots ...[]byte) {
		for role, api := range apis {
			id := identityOf(role)
			chain, key := by.Issue(id, now.Add(-time.Minute), until)
			api.Send(id, chain, key, roots...)
		}
	}
	files := regexp.MustCompile(`(?m)^tls:\n(  .*\n)+`)
	supply := func(role string) {
		apis[role] = platformtest.NewWorkloadAPI(t)
		file := "config/" + role + ".yaml"
		h.WriteFile(file, files.ReplaceAllString(h.ReadFile(file), "tls:\n  workload_api: "+apis[role].Address()+"\n"))
	}
	for _, role := range harness.Roles() {
		supply(role)
	}
	send(first, now.Add(time.Hour), first.Root())
	h.StartAll()
	agent := h.Connect(h.AddClient("agent"))
	walk := func() {
		t.Helper()
		isStatus(t, "ok", agent.Ask("service_info", demo))
		asked := agent.Ask("start_service", demo)
		isStatus(t, "pending_approval", asked)
		h.Approve(asked.OperationID)
		isStatus(t, "ok", agent.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID}))
	}
	walk()

	until := now.Add(2 * time.Hour)
	send(second, until, first.Root(), second.Root())
	for _, role := range harness.Roles() {
		harness.Eventually(t, role+" has the new certificate", func() error {
			if ends := value(scrape(t, h, role)["durward_certificate_expiry_timestamp_seconds"], nil); ends != float64(until.Unix()) {
				return fmt.Errorf("it ends at %f", ends)
			}
			return nil
		})
	}
	isStatus(t, "ok", agent.Ask("service_info", demo))
	h.Process(harness.Executor).Kill()
	h.StartProcess(harness.Executor)
	harness.Eventually(t, "the others know an executor of the new authority", func() error {
		if e := agent.Ask("service_info", demo); e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
	if out := h.Run("", "services"); out.Code == 0 {
		t.Error("control: the operator's program, which no API tells of the new root, trusts it")
	}
	supply("operator")
	send(second, until, first.Root(), second.Root())
	h.Durward("services")
	out := h.Durward("cert", "status", "--json")
	for role := range apis {
		if !strings.Contains(out, identityOf(role)) {
			t.Errorf("cert status has no %s: %s", role, out)
		}
	}
	if n := strings.Count(out, until.UTC().Format(time.RFC3339)); n != len(apis) {
		t.Errorf("cert status has the end of %d certificates: %s", n, out)
	}
	if out := h.Run("", "doctor"); !strings.Contains(out.Stdout, "all are valid") {
		t.Errorf("doctor: %s", out.Stdout)
	}
	h.Durward("stop", harness.DemoService, "--yes")
	walk()
	h.Durward("audit", "verify")

	apis[harness.Vault].Stop()
	h.Process(harness.Vault).Kill()
	if out := h.Run("", "cert", "status"); out.Code == 0 || !strings.Contains(out.Stdout, "the process does not answer") {
		t.Errorf("cert status without a vault: %+v", out)
	}
}
