package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink/control"
	"durward.internal/services/platform/suspicion"
)

// ControlConfig is what a Control is made of; everything is required.
type ControlConfig struct {
	Sink  *control.Sink
	Tools *Tools
	// DomainsRefused says why the list that is there now is not in force; "" where it is.
	DomainsRefused func() string
	// Running and Pinned are other people's MCP servers.
	Running Running
	Pinned  Pinned
}

// unimplemented stands below what a sink has, so that control.Sink's methods are the ones that count.
type unimplemented struct {
	egressv1.UnimplementedControlServiceServer
}

// Control implements egressv1.ControlServiceServer.
type Control struct {
	unimplemented
	*control.Sink
	cfg ControlConfig
}

// NewControl returns the control side.
func NewControl(cfg ControlConfig) *Control { return &Control{Sink: cfg.Sink, cfg: cfg} }

// Subjects knows what a call acts on: where it leads. It is the sink's Subjects and its Finder.
type Subjects struct{}

// Subject implements sink.Subjects.
func (Subjects) Subject(_ context.Context, tool contract.Tool, request proto.Message) (*callv1.Subject, error) {
	if tool.Foreign != nil {
		return tool.Foreign.Subject()
	}
	to, is, err := tool.Destination(request)
	if err != nil {
		return nil, err
	}
	if _, report := request.(*egressv1.SecurityReportRequest); report {
		return &callv1.Subject{Label: "requests that its session made"}, nil
	}
	if !is {
		return nil, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errors.New("a tool that leads nowhere")))
	}
	entry, err := canonical.Marshal(map[string]any{"domain": to.Host, "port": fmt.Sprint(to.Port)})
	return &callv1.Subject{Label: "domain " + to.String(), Entry: entry}, err
}

// Found implements sink.Finder: what was sent is gone, and nothing here says how it ended.
func (Subjects) Found(context.Context, string, string, []byte) string { return "sent or not sent" }

// PreviewCall returns what a call would act on and do. What a call of another's server does the operator's program says itself, by its own
// copy of what was accepted: to that it adds what is known here of where a URL leads.
func (c *Control) PreviewCall(ctx context.Context, r *executorv1.PreviewCallRequest) (*executorv1.PreviewCallResponse, error) {
	tool, request, out, err := c.Preview(r)
	if err != nil {
		return nil, err
	}
	if out.Subject, err = (Subjects{}).Subject(ctx, tool, request); err != nil {
		return nil, err
	}
	if tool.Answers() {
		out.Plan = append(out.Plan, c.answered(tool, request))
	}
	to, leads, err := tool.Destination(request)
	if err != nil || !leads {
		return out, err
	}
	if tool.Foreign == nil {
		out.Plan = requestPlan(tool, to)
	}
	switch verdict, by := c.cfg.Tools.domains().Judge(destination.Party{}, to); verdict {
	case destination.Blocked:
		out.Plan = append(out.Plan, "it is refused all the same: the domain is blocked, by "+by.Domain)
	case destination.Allowed:
	default:
		out.Plan = append(out.Plan, c.cfg.Tools.remarks(to)...)
	}
	return out, nil
}

// answered says what a server asks that a call answers.
func (c *Control) answered(tool contract.Tool, request proto.Message) string {
	call, _ := request.(*egressv1.CallServerToolRequest)
	var given struct{ Question string }
	if err := json.Unmarshal([]byte(call.GetArgumentsJcs()), &given); err == nil {
		if asked := c.cfg.Running.Asked(tool.Foreign.Server, given.Question); asked != "" {
			return "the server asks: " + clean.Visible(clean.Line(asked, 500))
		}
	}
	return "no question of that name waits"
}

func requestPlan(tool contract.Tool, to destination.Destination) []string {
	if tool.Tier != optionsv1.Tier_TIER_READ {
		return []string{"send this request to " + to.String() + ", whose name is looked up first, and follow no redirect"}
	}
	return []string{"send a request to " + to.String() + ", whose name is looked up first; redirects are followed to the same host and to listed ones"}
}

// Halt implements the control side's: what runs of other people's servers stands still until Resume.
func (c *Control) Halt(ctx context.Context, r *executorv1.HaltRequest) (*executorv1.HaltResponse, error) {
	out, err := c.Sink.Halt(ctx, r)
	return out, errors.Join(err, c.cfg.Running.Freeze())
}

// Resume implements the control side's.
func (c *Control) Resume(ctx context.Context, r *executorv1.ResumeRequest) (*executorv1.ResumeResponse, error) {
	out, err := c.Sink.Resume(ctx, r)
	if err != nil {
		return nil, err
	}
	return out, c.cfg.Running.Thaw()
}

// remarks are what a person who decides ought to know of a host that is on no list.
func (t *Tools) remarks(to destination.Destination) (lines []string) {
	if network := suspicion.CDN(to.Host); network != "" {
		lines = append(lines, network+" delivers what many put there: the name does not say whose it is")
	}
	if !t.hosts.has(to.Host) {
		lines = append(lines, "NEW ("+suspicion.Low.String()+"): it has answered nobody here yet")
	}
	for _, f := range suspicion.Of(to.Host) {
		lines = append(lines, "SUSPICIOUS ("+f.Severity.String()+"): "+f.Why)
	}
	if err := t.unsuspicious(to); err != nil {
		lines = append(lines, "it is refused all the same, by refuse_suspicious in egress.yaml")
	}
	return lines
}

// TestURL says what would become of a request.
func (c *Control) TestURL(_ context.Context, r *egressv1.TestURLRequest) (*egressv1.TestURLResponse, error) {
	out := &egressv1.TestURLResponse{Verdict: "refused"}
	_, to, err := destination.ParseURL(r.GetUrl())
	if err == nil {
		out.Destination = to.String()
		err = c.cfg.Tools.dialer.Spelled(to)
	}
	if refused := (*destination.Error)(nil); errors.As(err, &refused) {
		out.Rule, out.Why = string(refused.Rule), refused.Why
		return out, nil
	}
	verdict, by := c.cfg.Tools.domains().Judge(destination.Party{Client: r.GetClient(), Agent: r.GetAgent(), User: r.GetUser()}, to)
	switch verdict {
	case destination.Allowed:
		out.Verdict, out.Rule, out.Why = "allowed", by.Domain, by.File+" allows it; its address is judged when it is dialled"
	case destination.Blocked:
		out.Verdict, out.Rule, out.Why = "blocked", by.Domain, cmp.Or(by.File, "Durward")+" blocks it, whatever else allows it"
	default:
		out.Verdict, out.Rule, out.Why = "asks", string(destination.RuleDestination), "it is on no list: a human is asked each time"
		if err := (*destination.Error)(nil); errors.As(c.cfg.Tools.unsuspicious(to), &err) {
			out.Verdict, out.Rule, out.Why = "refused", string(err.Rule), "it is on no list"
		}
		out.Why = strings.Join(append([]string{out.Why}, c.cfg.Tools.remarks(to)...), "; ")
	}
	return out, nil
}

// GetStatus is deep health.
func (c *Control) GetStatus(ctx context.Context, _ *egressv1.GetStatusRequest) (*egressv1.GetStatusResponse, error) {
	list := c.cfg.Tools.domains()
	status := &egressv1.GetStatusResponse{
		Domains: uint32(len(list.Allow) + len(list.Block)), DomainsRefused: c.cfg.DomainsRefused(), UnderWay: uint32(c.cfg.Tools.UnderWay()),
	}
	return status, c.Status(ctx, status)
}
