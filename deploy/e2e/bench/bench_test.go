//go:build bench

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
)

var (
	rounds = flag.Int("rounds", 5, "interleaved rounds")
	reads  = flag.Int("reads", 600, "reads a round with one client; twice as many with more")
	writes = flag.Int("writes", 150, "approved changes")
	out    = flag.String("out", "", "write the reads' figures into that `folder` too, as benchstat reads them")
	asJSON = flag.String("json", "", "write the tables into that `file` too")
	base   = flag.String("base", "", "measure the programs in that `folder` beside this checkout's, in the same rounds")
	socket = flag.Bool("sockets", false, "measure our processes over Unix sockets too, beside loopback")
	tool   = flag.String("tool", "list_modes", "the tool that reads call; it takes no arguments")
	hold   = flag.Duration("hold", 0, "afterwards read for so long, for a profiler")
	holdBy = flag.Int("hold-clients", 16, "with so many clients")
	holdIn = flag.String("hold-era", sessions.name, "in that era: sessions or stateless")
)

// Aims.
const (
	readAim, readMust           = 1.5, 2.0
	rateAim, rateMust           = 1.0, 0.75
	processorAim, processorMust = 1.0, 1.5
	rarestAim, rarestMust       = 1.0, 1.5 // p99
	changeAim, changeMust       = 3.0, 5.0 // ms
	startAim                    = 2 * time.Second
	memoryAim, memoryMust       = 120.0, 160.0
)

const nullService = "bench"

type suite struct {
	*testing.T
	h     *harness.Host
	rows  []row
	goals [][]string
	// others are hosts of ours that are measured beside h: of the commit before, over sockets.
	others []other

	token         string
	disk          sample
	signer        ssh.Signer
	vault         *grpc.ClientConn
	executor      *grpc.ClientConn
	audit         *grpc.ClientConn
	gatewayVault  *grpc.ClientConn
	sessionHandle string
}

// TestBench prints one table of everything; -run TestBench/calls, /limits, /logs or /servers measures a part.
func TestBench(t *testing.T) {
	var rows []row
	var goals [][]string
	for _, part := range []struct {
		name    string
		measure func(*suite)
	}{{"calls", (*suite).calls}, {"limits", (*suite).limits}, {"logs", (*suite).logs}, {"servers", (*suite).servers}} {
		t.Run(part.name, func(t *testing.T) {
			s := &suite{T: t}
			part.measure(s)
			rows, goals = append(rows, s.rows...), append(goals, s.goals...)
		})
	}
	report(t, rows, goals)
}

// calls measures calls, one client's, as fast as they go.
func (s *suite) calls() {
	s.h = harness.New(s, harness.Options{Catalog: catalog})
	s.token = s.h.AddClient("bench")
	s.start()
	s.h.StartAll()
	s.people()
	s.reads()
	s.write()
	s.append()
	s.memory()
	if *hold > 0 {
		s.keepReading(*hold)
	}
}

func catalog(*harness.Host) string {
	return `version: 1
gpus:
  - {index: 0, name: Simulated 24 GB, memory_mib: 24576, simulated: true}
  - {index: 1, name: Simulated 80 GB, memory_mib: 81920, simulated: true}
services:
  - {id: ` + nullService + `, name: Bench, driver: "null"}
  - {id: other, name: Other, driver: "null", gpus: [0], vram_mib: 8192}
modes:
  - {id: both, name: Both, services: [` + nullService + `, other]}
  - {id: one, name: One, services: [` + nullService + `]}
`
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) row(r row) { s.rows = append(s.rows, r) }

// start measures `durward up`, on a home that exists, until every process is healthy.
func (s *suite) start() {
	var took []time.Duration
	for range 3 {
		cmd := exec.Command(filepath.Join(s.h.Bin, "durward"), "--home", s.h.Dir, "up", "--development")
		began := time.Now()
		s.must(cmd.Start())
		for _, role := range harness.Roles() {
			for !s.h.Healthy(role) {
				if time.Since(began) > harness.Patience {
					s.Fatalf("%s is not healthy", role)
				}
				time.Sleep(5 * time.Millisecond) // another process's health has no event
			}
		}
		took = append(took, time.Since(began))
		s.must(cmd.Process.Signal(syscall.SIGINT))
		_ = cmd.Wait() // it is over
	}
	slices.Sort(took)
	s.row(row{"start of all processes (durward up), median of 3", "", fmt.Sprintf("%.2f s", took[1].Seconds()), "", "<= 2 s", verdict(took[1] <= startAim)})
}

// people are the operator, and the gateway as it asks for an agent.
func (s *suite) people() {
	s.signer = s.h.Signer()
	s.vault, s.executor = s.h.DialAs(s.h.OperatorIdentity(), harness.Vault), s.h.DialAs(s.h.OperatorIdentity(), harness.Executor)
	s.audit = s.h.DialAs(s.h.OperatorIdentity(), harness.Audit)
	s.gatewayVault = s.h.DialAs(s.h.Identity(harness.Gateway), harness.Vault)
	out, err := vaultv1.NewSessionServiceClient(s.gatewayVault).OpenSession(s.Context(), &vaultv1.OpenSessionRequest{Credential: s.token, ClientName: "bench"})
	s.must(err)
	s.sessionHandle = out.GetSessionId()
}

func (s *suite) clients(era era, url, token string, n int) []*client {
	s.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: n, MaxConnsPerHost: n}
	s.Cleanup(transport.CloseIdleConnections)
	var out []*client
	for range n {
		c, err := newClient(s.Context(), transport, era, url, token)
		s.must(err)
		out = append(out, c)
	}
	return out
}

func message(a answer) []byte {
	_, rest, found := strings.Cut(string(a.body), "data: ")
	if !found {
		return a.body
	}
	line, _, _ := strings.Cut(rest, "\n")
	return []byte(line)
}

// approved asks for a change and approves it, and returns the operation's id: what is left is the live call.
func (s *suite) approved(tool string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	t, _ := contract.Lookup(tool)
	args := []byte(`{"service_id":"` + nullService + `"}`)
	asked, err := vaultv1.NewAuthorityServiceClient(s.gatewayVault).Authorise(ctx, &vaultv1.AuthoriseRequest{
		SessionId: s.sessionHandle, Tool: t.Ref(), Arguments: args,
	})
	s.must(err)
	approvals := vaultv1.NewApprovalServiceClient(s.vault)
	list, err := approvals.ListOperations(ctx, &vaultv1.ListOperationsRequest{})
	s.must(err)
	var op *vaultv1.Operation
	for _, o := range list.GetOperations() {
		if o.GetOperationId() == asked.GetOperationId() {
			op = o
		}
	}
	preview, err := executorv1.NewControlServiceClient(s.executor).PreviewCall(ctx, &executorv1.PreviewCallRequest{Tool: t.Ref(), Arguments: args})
	s.must(err)
	argsDigest, subject, now, ref := canonical.Digest(args), canonical.Digest(preview.GetSubject().GetEntry()), time.Now(), statement.ToolOf(t.Ref())
	signed, err := statement.Sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindApprove, ID: grant.NewID(), Operator: s.h.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: op.GetEpoch(), Audience: preview.GetAudience(), Operation: op.GetOperationId(), Tool: &ref, Tier: contract.TierName(t.Tier),
		Arguments: args, ArgumentsDigest: canonical.FormatDigest(argsDigest[:]), Target: preview.GetSubject().GetLabel(),
		SubjectDigest: canonical.FormatDigest(subject[:]), Uses: 1,
		Principal: op.GetPrincipal(), Session: op.GetSession(), Channel: statement.ChannelName(op.GetChannel()),
	}, s.signer)
	s.must(err)
	_, err = approvals.ApproveOperation(ctx, &vaultv1.ApproveOperationRequest{OperationId: op.GetOperationId(), Statement: signed})
	s.must(err)
	return op.GetOperationId()
}

// window is the time of one live call.
type window struct{ from, to time.Time }

// live carries out n approved changes through the gateway and returns how long each live call took, and when.
func (s *suite) live(c *client, n int, pause time.Duration) ([]time.Duration, []window) {
	s.Helper()
	var took []time.Duration
	var windows []window
	for i := range n {
		id := s.approved([]string{"start_service", "stop_service"}[i%2])
		time.Sleep(pause) // what is measured is a host at rest
		at := time.Now()
		_, err := c.call(s.Context(), "wait_operation", `{"operation_id":"`+id+`"}`)
		s.must(err)
		took = append(took, time.Since(at))
		windows = append(windows, window{at, time.Now().Add(pause / 2)})
		time.Sleep(pause) // as above
	}
	return took, windows
}

// A changer is a host whose live calls after an approval are measured.
type changer struct {
	name string
	s    *suite
	c    *client
	took []time.Duration
}

// write measures the live call after an approval, and counts what it makes durable.
func (s *suite) write() {
	if *writes == 0 {
		return
	}
	field := []*changer{{name: ourName, s: s, c: s.clients(sessions, s.h.MCPURL(), s.token, 1)[0]}}
	for _, o := range s.others {
		host := &suite{T: s.T, h: o.h, token: o.h.AddClient("changes")}
		host.people()
		field = append(field, &changer{name: o.name, s: host, c: s.clients(sessions, o.h.MCPURL(), host.token, 1)[0]})
	}
	var bare []time.Duration
	for _, f := range field {
		f.s.live(f.c, 10, 0)
	}
	for range 5 {
		block, err := disk(s.h.Path("state"), 4096, 100)
		s.must(err)
		bare = append(bare, block...)
		for _, f := range field {
			part, _ := f.s.live(f.c, *writes/5, 0)
			f.took = append(f.took, part...)
		}
	}
	s.disk = summarise(bare)
	s.row(row{"write + fdatasync of 4 kB, p50 (p99)", ms(s.disk.p50) + " (" + ms(s.disk.p99) + ")", "", "", "", ""})
	for _, f := range field {
		w := summarise(f.took)
		count, measured := f.s.fsyncs(f.c)
		here := "no strace"
		if measured {
			here = fmt.Sprintf("%.1f fsyncs", count)
		}
		s.row(row{"approved change, null driver, " + f.name + ": p50 (p99), fsyncs, processor", ms(s.disk.p50),
			fmt.Sprintf("%s (%s), %s, %.1f ms", ms(w.p50), ms(w.p99), here, float64(f.s.cost(f.c))/float64(time.Millisecond)),
			fmt.Sprintf("%.1f x", float64(w.p50)/float64(s.disk.p50)), "", ""})
		if f.name == ourName {
			s.goals = append(s.goals, goal("approved change, null driver, p50", "write + fdatasync "+ms(s.disk.p50), here,
				float64(w.p50)/float64(time.Millisecond), changeMust, changeAim, "%.1f ms", false))
		}
	}
}

// cost is the processor time of all processes for one live call and what follows it.
func (s *suite) cost(c *client) time.Duration {
	s.Helper()
	const n, rest = 20, 100 * time.Millisecond
	var sum time.Duration
	for i := range n {
		id := s.approved([]string{"start_service", "stop_service"}[i%2])
		time.Sleep(rest) // what follows the approval has no event
		before := s.processors()
		_, err := c.call(s.Context(), "wait_operation", `{"operation_id":"`+id+`"}`)
		s.must(err)
		time.Sleep(rest) // as above
		for role, now := range s.processors() {
			sum += now - before[role]
		}
	}
	return sum / n
}

// fsyncs counts, with strace, the fsync and fdatasync calls of all processes in the time of a live call and just after it.
func (s *suite) fsyncs(c *client) (float64, bool) {
	program, err := exec.LookPath("strace")
	if err != nil {
		return 0, false
	}
	out := filepath.Join(s.TempDir(), "strace")
	args := []string{"-f", "-ttt", "-e", "trace=fsync,fdatasync", "-o", out}
	for _, role := range harness.Roles() {
		args = append(args, "-p", strconv.Itoa(s.h.Process(role).PID()))
	}
	cmd := exec.Command(program, args...)
	s.must(cmd.Start())
	time.Sleep(time.Second) // strace does not tell when it has attached to all
	const n = 20
	_, windows := s.live(c, n, 100*time.Millisecond)
	s.must(cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait() // it ends by the signal
	f, err := os.Open(out)
	s.must(err)
	defer f.Close()
	count := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		// A call that was interrupted by another's line is written in two parts; the first counts.
		if len(fields) < 3 || strings.Contains(lines.Text(), "resumed>") || !strings.Contains(fields[2], "sync(") {
			continue
		}
		seconds, err := strconv.ParseFloat(fields[1], 64)
		s.must(err)
		at := time.Unix(0, int64(seconds*1e9))
		for _, w := range windows {
			if at.After(w.from) && at.Before(w.to) {
				count++
			}
		}
	}
	return float64(count) / n, true
}

// append measures one record into the log.
func (s *suite) append() {
	log := auditv1.NewLogServiceClient(s.audit)
	head, err := log.GetHead(s.Context(), &auditv1.GetHeadRequest{})
	s.must(err)
	next := head.GetLastSequence()
	var took, bare []time.Duration
	for range 5 {
		block, err := disk(s.h.Path("state"), 4096, 100)
		s.must(err)
		bare = append(bare, block...)
		for range 100 {
			next++
			at := time.Now()
			_, err := log.Append(s.Context(), &auditv1.AppendRequest{Records: []*auditv1.Record{{
				Sequence: next, Kind: auditv1.Kind_KIND_NOTE, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK,
				Body: &auditv1.Body{Principal: "operator:bench", Summary: "bench"},
			}}})
			s.must(err)
			took = append(took, time.Since(at))
		}
	}
	a, b := summarise(took), summarise(bare)
	s.row(row{"audit append over mutual TLS, p50", ms(b.p50), ms(a.p50), fmt.Sprintf("%.2f x", float64(a.p50)/float64(b.p50)), "", ""})
	s.row(row{"audit append over mutual TLS, p99", ms(b.p99), ms(a.p99), fmt.Sprintf("%.2f x", float64(a.p99)/float64(b.p99)), "", ""})
}

// memory adds up what the processes hold after all this, at once and when they have been at rest for a while.
func (s *suite) memory() {
	atOnce := s.resident("resident memory at the end of the load")
	time.Sleep(restTime) // what a process does at rest has no event outside it
	rested := s.resident("resident memory at rest after the load")
	s.goals = append(s.goals, goal("resident memory of all four at rest after the load", "", fmt.Sprintf("%.0f MB at its end", atOnce), rested, memoryMust, memoryAim, "%.0f MB", false))
}

// restTime is more than it takes until a process that is asked nothing gives memory back.
const restTime = 40 * time.Second

func (s *suite) resident(when string) float64 {
	s.Helper()
	total, each := 0.0, []string{}
	for _, role := range harness.Roles() {
		mib, err := memory(s.h.Process(role).PID(), "VmRSS")
		s.must(err)
		program, err := memory(s.h.Process(role).PID(), "RssFile")
		s.must(err)
		total += mib
		each = append(each, fmt.Sprintf("%s %.0f, the program itself %.0f", role, mib, program))
	}
	s.row(row{when + " (" + strings.Join(each, "; ") + ")", "", fmt.Sprintf("%.0f MB", total), "", "", ""})
	return total
}

func (s *suite) keepReading(d time.Duration) {
	spoken := sessions
	if *holdIn == stateless.name {
		spoken = stateless
	}
	clients := s.clients(spoken, s.h.MCPURL(), s.token, *holdBy)
	until := time.Now().Add(d)
	for time.Now().Before(until) {
		_, err := measure(clients, 1600, func(c *client) error {
			_, err := c.call(s.Context(), *tool, "{}")
			return err
		})
		s.must(err)
	}
}

// report writes the tables, and as JSON where -json names a file.
func report(t *testing.T, rows []row, goals [][]string) {
	result := tables(rows, goals)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, table := range result.Tables {
		for _, line := range append([][]string{table.Columns}, table.Rows...) {
			fmt.Fprintln(w, strings.Join(line, "\t"))
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if *asJSON == "" {
		return
	}
	b, err := json.MarshalIndent(result, "", "  ")
	if err == nil {
		err = os.WriteFile(*asJSON, append(b, '\n'), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
