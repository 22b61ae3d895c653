package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/egress/internal/domains"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/suspicion"
	"durward.internal/services/platform/telemetry"
)

// ControlConfig is what a Control is made of; everything is required.
type ControlConfig struct {
	// Self is this process's SPIFFE ID.
	Self           string
	Tools          *Tools
	Domains        *domains.Live
	Authority      *sink.Authority
	Log            *recorder.Recorder
	VaultReachable func() bool
	Deep           *telemetry.Deep
	Version        string
}

// Control implements egressv1.ControlServiceServer.
type Control struct {
	egressv1.UnimplementedControlServiceServer
	cfg     ControlConfig
	started time.Time
}

// NewControl returns the control side.
func NewControl(cfg ControlConfig) *Control { return &Control{cfg: cfg, started: time.Now()} }

// Subjects knows what a call acts on: where it leads. It is the sink's Subjects and its Finder.
type Subjects struct{}

// Subject implements sink.Subjects.
func (Subjects) Subject(_ context.Context, tool contract.Tool, request proto.Message) (*callv1.Subject, error) {
	to, is, err := tool.Destination(request)
	if err != nil {
		return nil, err
	}
	if !is {
		return nil, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errors.New("a tool that leads nowhere")))
	}
	entry, err := canonical.Marshal(map[string]any{"domain": to.Host, "port": fmt.Sprint(to.Port)})
	return &callv1.Subject{Label: "domain " + to.String(), Entry: entry}, err
}

// Found implements sink.Finder: what was sent is gone, and nothing here says how it ended.
func (Subjects) Found(context.Context, string, string, []byte) string { return "sent or not sent" }

// PreviewCall returns what a call would act on and do.
func (c *Control) PreviewCall(ctx context.Context, r *executorv1.PreviewCallRequest) (*executorv1.PreviewCallResponse, error) {
	tool, ok := contract.Referred(r.GetTool())
	if !ok || tool.Sink != optionsv1.Role_ROLE_EGRESS {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "egress has no such tool, or another definition of it", fault.WithField("tool"))
	}
	arguments, err := contract.CanonicalArguments(r.GetArguments())
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the arguments are not in canonical form", fault.WithField("arguments"), fault.WithCause(err))
	}
	request, err := tool.Decode(arguments)
	if err != nil {
		return nil, err
	}
	out := &executorv1.PreviewCallResponse{Epoch: c.cfg.Authority.Control().Epoch, Audience: c.cfg.Self}
	if out.Subject, err = (Subjects{}).Subject(ctx, tool, request); err != nil {
		return nil, err
	}
	to, _, err := tool.Destination(request)
	if err != nil {
		return nil, err
	}
	out.Plan = []string{"send a request to " + to.String() + ", whose name is looked up first; redirects are followed to the same host and to listed ones"}
	if tool.Tier != optionsv1.Tier_TIER_READ {
		out.Plan = []string{"send this request to " + to.String() + ", whose name is looked up first, and follow no redirect"}
	}
	switch verdict, by := c.cfg.Domains.Current().Judge("", "", to); verdict {
	case destination.Blocked:
		out.Plan = append(out.Plan, "it is refused all the same: the domain is blocked, by "+by)
	case destination.Allowed:
	default:
		out.Plan = append(out.Plan, c.cfg.Tools.remarks(to)...)
	}
	return out, nil
}

// remarks are what a person who decides ought to know of a host that is on no list.
func (t *Tools) remarks(to destination.Destination) (lines []string) {
	if network := suspicion.CDN(to.Host); network != "" {
		lines = append(lines, network+" delivers what many put there: the name does not say whose it is")
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
	verdict, by := c.cfg.Domains.Current().Judge(r.GetClient(), r.GetAgent(), to)
	switch verdict {
	case destination.Allowed:
		out.Verdict, out.Rule, out.Why = "allowed", by, "the list of domains allows it; its address is judged when it is dialled"
	case destination.Blocked:
		out.Verdict, out.Rule, out.Why = "blocked", by, "the list of domains blocks it, whatever else allows it"
	default:
		out.Verdict, out.Rule, out.Why = "asks", string(destination.RuleDestination), "it is on no list: a human is asked each time"
		if err := (*destination.Error)(nil); errors.As(c.cfg.Tools.unsuspicious(to), &err) {
			out.Verdict, out.Rule, out.Why = "refused", string(err.Rule), err.Why
		} else if flags := suspicion.Of(to.Host); len(flags) > 0 {
			out.Why += "; suspicious (" + flags[0].Severity.String() + "): " + flags[0].Why
		}
	}
	return out, nil
}

// GetStatus is deep health.
func (c *Control) GetStatus(ctx context.Context, _ *egressv1.GetStatusRequest) (*egressv1.GetStatusResponse, error) {
	now := c.cfg.Authority.Control()
	unsettled, err := c.cfg.Authority.Unsettled(ctx)
	if err != nil {
		return nil, err
	}
	list := c.cfg.Domains.Current()
	status := &egressv1.GetStatusResponse{
		Halted: now.Halted, Epoch: now.Epoch, AuditReachable: c.cfg.Log.Reachable(), VaultReachable: c.cfg.VaultReachable(),
		SpooledRecords: uint32(max(c.cfg.Log.Depth(), 0)), Version: c.cfg.Version, StartedAt: timestamppb.New(c.started),
		Checkpoint: c.cfg.Log.Checkpoint(), Unsettled: uint32(unsettled), Problems: c.cfg.Deep.Problems(ctx),
		Domains: uint32(len(list.Allow) + len(list.Block)), DomainsRefused: c.cfg.Domains.Refused(), UnderWay: uint32(c.cfg.Tools.UnderWay()),
	}
	if now.Halted {
		status.HaltedReason, status.HaltedBy = now.Reason, now.By
		if !now.At.IsZero() {
			status.HaltedAt = timestamppb.New(now.At)
		}
	}
	return status, nil
}

// Halt stops everything that leaves this host, durably.
func (c *Control) Halt(ctx context.Context, r *executorv1.HaltRequest) (*executorv1.HaltResponse, error) {
	epoch, err := c.cfg.Authority.Halt(ctx, r.GetReason(), r.GetEpoch())
	if err != nil {
		return nil, err
	}
	return &executorv1.HaltResponse{Epoch: epoch}, nil
}

// EndStanding makes standing statements void here.
func (c *Control) EndStanding(ctx context.Context, r *executorv1.EndStandingRequest) (*executorv1.EndStandingResponse, error) {
	if err := c.cfg.Authority.EndStanding(ctx, r.GetStatements()); err != nil {
		return nil, err
	}
	return &executorv1.EndStandingResponse{}, nil
}

// Resume ends a halt, on a human's statement.
func (c *Control) Resume(ctx context.Context, r *executorv1.ResumeRequest) (*executorv1.ResumeResponse, error) {
	epoch, err := c.cfg.Authority.Resume(ctx, r.GetStatement())
	if err != nil {
		return nil, err
	}
	return &executorv1.ResumeResponse{Epoch: epoch}, nil
}
