package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"

	"durward.internal/deploy/e2e/harness"
)

// smallDisk is room for the three reserves, twice over, and the databases.
const smallDisk = 64 << 20

// panicTime is how long a panic may take: its second, and as long for a machine of two cores that starts a program meanwhile.
const panicTime = 2 * time.Second

// crowded is an installation whose whole state lies on one small disk.
type crowded struct {
	*harness.Host
	t       *testing.T
	agent   *harness.Client
	ballast string
}

// crowd starts an installation on the small disk, with a session open and a service running, and fills the disk.
func crowd(t *testing.T, disk string, opts harness.Options) *crowded {
	t.Helper()
	var state string
	t.TempDir() // it is removed after what is registered from here on
	t.Cleanup(func() {
		if err := syscall.Unmount(state, syscall.MNT_DETACH); err != nil {
			t.Errorf("take the small disk away: %v", err)
		}
	})
	h := harness.New(t, opts)
	state = h.Path("state")
	must(t, os.MkdirAll(state, 0o700))
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", state, filepath.Join(disk, "state")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must(t, syscall.Mount(filepath.Join(disk, "state"), state, "", syscall.MS_BIND, ""))
	h.StartAll()
	c := &crowded{Host: h, t: t, agent: h.Connect(h.AddClient("agent")), ballast: filepath.Join(disk, "ballast")}
	mutate(t, h, c.agent, "start_service")
	platformtest.Fill(t, c.ballast)
	return c
}

// kept is how many bytes of the processes' reserves are held.
func (c *crowded) kept(t *testing.T) (held int64) {
	t.Helper()
	for _, role := range []string{harness.Audit, harness.Vault, harness.Executor} {
		info, err := os.Stat(c.Path("state", role, reserve.File))
		must(t, err)
		held += info.Size()
	}
	return held
}

// start asks for a service until that is refused, which what is left in the last pages of the files may put off, or there was
// enough, and returns the answer. Operations that came to be are denied.
func (c *crowded) start(enough func() bool) (last harness.Envelope) {
	for range 20 {
		last = c.agent.Call("start_service", map[string]any{"service_id": harness.SlowService})
		if last.Status != "pending_approval" || enough() {
			break
		}
		c.Deny(last.OperationID, "not now")
		platformtest.Fill(c.t, c.ballast) // what was given back since
	}
	return last
}

// halted asks the vault and the executor, by the operator's command, whether they are halted.
func (c *crowded) halted() error {
	out := c.Run("", "status")
	if n := strings.Count(out.Stdout, ", halted"); n != 2 {
		return fmt.Errorf("not halted: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	return nil
}

// TestFullDisk: on a disk without a byte left, which all processes share, nothing new begins, and what is refused is refused in a
// plain sentence. A running service can still be stopped, by an approval, and recorded; a panic takes effect in its second and
// outlives a restart; and once there is room the log is whole, and everything goes on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	harness.Binaries(t, harness.Build{})
	disk := platformtest.SmallDisk(t, smallDisk)
	if disk == "" {
		return // it ran in a process of its own
	}
	c := crowd(t, disk, harness.Options{})
	full := c.kept(t)

	refused := c.start(func() bool { return false })
	if refused.Status != "error" || !refused.Error.Retryable || refused.Error.Message != reserve.Sentence {
		t.Errorf("a start on a full disk: %s", refused.Raw)
	}
	t.Logf("refused: %s / %s", refused.Summary, refused.TellUser)
	// What a process said of itself before counts for half a minute.
	out := c.Run("", "doctor")
	if says := func(role string) bool { return strings.Contains(out.Stdout, "the "+role+": "+reserve.Problem) }; !slices.ContainsFunc(harness.Roles(), says) {
		t.Errorf("doctor does not say that a disk is full:\n%s%s", out.Stdout, out.Stderr)
	}
	if n := c.Starts(harness.SlowService); n != 0 {
		t.Errorf("the service was started %d times", n)
	}

	asked := c.agent.Ask("stop_service", demo)
	if asked.Status != "pending_approval" {
		t.Fatalf("a stop on a full disk: %s", asked.Raw)
	}
	c.Approve(asked.OperationID)
	if e := c.agent.Ask("wait_operation", asked.Next.Arguments); e.Status != "ok" {
		t.Fatalf("an approved stop on a full disk: %s", e.Raw)
	}
	if pids := c.ServicePIDs(); len(pids) != 0 {
		t.Errorf("the service runs still: %v", pids)
	}
	if now := c.kept(t); now >= full {
		t.Errorf("%d bytes are kept of %d: the disk was not full", now, full)
	}
	for _, role := range []string{harness.Audit, harness.Vault, harness.Executor} {
		harness.Eventually(t, role+"'s metrics say whether its disk is full", func() error {
			info, err := os.Stat(c.Path("state", role, reserve.File))
			must(t, err)
			if says := value(scrape(t, c.Host, role)["durward_disk_full"], nil); (says == 1) != (info.Size() < reserve.Default) {
				return fmt.Errorf("%v, and it keeps %d bytes", says, info.Size())
			}
			return nil
		})
	}

	spooled := value(scrape(t, c.Host, harness.Vault)["durward_recorder_spool_records"], nil)
	alone, _ := c.Strain(func() { c.Run("", "status") }) // as long as a program that asks every process takes now
	took, lag := c.Strain(func() { out = c.Run("", "panic", "--reason", "the disk is full") })
	if out.Code != 0 || took > panicTime+alone+10*lag {
		t.Errorf("durward panic: exit status %d after %s\n%s%s", out.Code, took, out.Stdout, out.Stderr)
	}
	t.Logf("durward panic took %s", took.Round(time.Millisecond))
	// The record of a halt follows it. The vault counts a record as spooled before it is on the disk, within 100 ms.
	var counted time.Time
	harness.Eventually(t, "the record of the halt is on a disk", func() error {
		if halts := c.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_HALTED}}); len(halts) > 0 {
			return nil
		}
		if value(scrape(t, c.Host, harness.Vault)["durward_recorder_spool_records"], nil) <= spooled {
			counted = time.Time{}
		} else if counted.IsZero() {
			counted = time.Now()
		} else if time.Since(counted) > 500*time.Millisecond {
			return nil // the vault's own
		}
		return fmt.Errorf("neither the vault nor audit has it")
	})
	// Whatever is free now was somebody's reserve.
	platformtest.Fill(t, c.ballast+"-2")
	for _, role := range []string{harness.Audit, harness.Vault, harness.Executor} {
		c.Process(role).Kill()
	}
	// Audit starts nothing that it cannot write down; the others do without it.
	for _, role := range []string{harness.Vault, harness.Executor} {
		c.Launch(role)
	}
	harness.Eventually(t, "the halt outlives a restart on the full disk", c.halted)

	for _, file := range []string{c.ballast, c.ballast + "-2"} {
		must(t, os.Remove(file))
	}
	c.Launch(harness.Audit)
	for _, role := range []string{harness.Audit, harness.Vault, harness.Executor} {
		c.AwaitHealthy(role)
	}
	if err := c.halted(); err != nil {
		t.Error(err)
	}
	harness.Eventually(t, "everything that was done is in the log", func() error {
		var got []auditv1.Kind
		for _, e := range c.Records(&auditv1.SearchRecordsRequest{OperationId: asked.OperationID}) {
			got = append(got, e.GetRecord().GetKind())
		}
		for _, kind := range []auditv1.Kind{
			auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED,
			auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME,
		} {
			if !slices.Contains(got, kind) {
				return fmt.Errorf("no %s of the stop: %v", kind, got)
			}
		}
		if halts := c.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_HALTED}}); len(halts) == 0 {
			return fmt.Errorf("no record of the halt")
		}
		return nil
	})
	c.Durward("audit", "verify")

	c.Durward("resume", "--yes")
	harness.Eventually(t, "services start again", func() error {
		e := c.agent.Call("start_service", demo)
		if e.Status != "pending_approval" {
			return fmt.Errorf("%s", e.Raw)
		}
		c.Approve(e.OperationID)
		if e = c.agent.Call("wait_operation", e.Next.Arguments); e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
	harness.Eventually(t, "the reserves are taken again", func() error {
		if now := c.kept(t); now != full {
			c.agent.Call("stop_service", demo)
			return fmt.Errorf("%d bytes of %d", now, full)
		}
		return nil
	})

	// Who ends on a disk that others then fill starts out of the reserve.
	c.Process(harness.Executor).Stop()
	platformtest.Fill(t, c.ballast)
	c.Launch(harness.Executor)
	harness.Eventually(t, "reads are answered after a start on a full disk", func() error {
		if e := c.agent.Call("list_services", nil); e.Status != "ok" {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
}

// TestFullDiskWithoutTheReserve is the negative control: without the guard a start uses up what a stop needs.
func TestFullDiskWithoutTheReserve(t *testing.T) {
	t.Parallel()
	build := harness.Build{Weak: true}
	harness.Binaries(t, build)
	disk := platformtest.SmallDisk(t, smallDisk)
	if disk == "" {
		return // it ran in a process of its own
	}
	weaken := []string{"-weaken", "reserve"}
	c := crowd(t, disk, harness.Options{Build: build, Flags: map[string][]string{
		harness.Audit: weaken, harness.Vault: weaken, harness.Executor: weaken,
	}})
	full := c.kept(t)
	if e := c.start(func() bool { return c.kept(t) < full }); e.Status != "pending_approval" {
		t.Errorf("a start without the guard: %s", e.Raw)
	}
	if now := c.kept(t); now >= full {
		t.Errorf("%d bytes are kept of %d: the guard is not what keeps starts from the reserve", now, full)
	}
}
