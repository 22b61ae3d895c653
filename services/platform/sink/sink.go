// Package sink is the discipline of every process where an effect happens (DESIGN.md "A mutation" 6): an interceptor that
// convinces itself before a tool's handler runs, writes down what will be done, lets it be done once, and writes down how
// it ended.
//
// It runs in the sinks. It trusts its own trust folder (the vault's grant keys, the operators' keys), its own clock and its
// own store. It does not trust the gateway that relays a call, nor the vault alone: a mutation needs a human's statement,
// which is checked here against the operators' keys. Whatever is refused is recorded with its true cause; the caller sees
// one sentence for each code.
package sink

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/refusals"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/share"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/trust"
)

const (
	// permitSkew is how far this clock may be from the vault's where a permit is judged, which lives for a minute; statement.Skew is for
	// the rest.
	permitSkew = 30 * time.Second
	// vaultTimeout bounds each call to the vault.
	vaultTimeout = 2 * time.Second
	// patience is how long what the vault said at the redemption holds for a call that no human approved as it is; after that it
	// is asked again, before the call has its effect.
	patience = time.Second
	// settleWait is how long a reply waits for the vault to hear of the outcome; after that it is told in the background.
	settleWait = time.Second
	// auditTimeout bounds each record that a call waits for.
	auditTimeout = 1800 * time.Millisecond
	// outcomeRetention is how long an outcome can be replayed.
	outcomeRetention = 24 * time.Hour
	// retryInterval is how often what could not be settled is tried again.
	retryInterval = time.Second
	// firstRefusals is how many refused calls of a kind are recorded as they come.
	firstRefusals = 5
	// purgeInterval is how often what is past its time is dropped.
	purgeInterval = 10 * time.Minute
)

// Recorder writes to the audit log. The platform's recorder is one.
type Recorder interface {
	// Record returns when the record is durable in the log and its receipt was verified.
	Record(ctx context.Context, record *auditv1.Record) (*callv1.Receipt, error)
	// Report is Record for what has happened already: if the log does not answer in time the record is kept in this process's
	// own spool, however full, and there is no receipt and no error.
	Report(ctx context.Context, record *auditv1.Record) (*callv1.Receipt, error)
	// Spool takes a record that may reach the log later. It returns at once, and fails when the spool is full.
	Spool(ctx context.Context, record *auditv1.Record) error
}

// Redeemer is what a sink needs of the vault; see NewRedeemer.
type Redeemer interface {
	Redeem(ctx context.Context, in *vaultv1.RedeemRequest, opts ...grpc.CallOption) (*vaultv1.RedeemResponse, error)
	Settle(ctx context.Context, in *vaultv1.SettleRequest, opts ...grpc.CallOption) (*vaultv1.SettleResponse, error)
	CheckGrant(ctx context.Context, in *vaultv1.CheckGrantRequest, opts ...grpc.CallOption) (*vaultv1.CheckGrantResponse, error)
	CheckPermit(ctx context.Context, in *vaultv1.CheckPermitRequest, opts ...grpc.CallOption) (*vaultv1.CheckPermitResponse, error)
}

// NewRedeemer returns the vault at the other end of a connection.
func NewRedeemer(conn grpc.ClientConnInterface) Redeemer {
	return redeemer{vaultv1.NewRedeemServiceClient(conn), vaultv1.NewCheckServiceClient(conn)}
}

type redeemer struct {
	vaultv1.RedeemServiceClient
	vaultv1.CheckServiceClient
}

// Tokeniser replaces what a session's agent may not see in texts from outside, each value by a reference;
// vaultv1.TokeniseServiceClient is one.
type Tokeniser interface {
	Tokenise(ctx context.Context, in *vaultv1.TokeniseRequest, opts ...grpc.CallOption) (*vaultv1.TokeniseResponse, error)
}

// Subjects answers what a call would act on: the RFC 8785 JSON whose SHA-256 is the subject digest, as it is now. Errors
// are faults for the caller (not found, for example).
type Subjects interface {
	Subject(ctx context.Context, tool contract.Tool, request proto.Message) (*callv1.Subject, error)
}

// Finder says, after a restart, what is true of a thing that an interrupted call acted on: "running", "stopped".
type Finder interface {
	// "" says that it is not known yet: the call stays open, and Settle is called for it later.
	Found(ctx context.Context, tool, operation string, arguments []byte) string
}

// Config is what an Authority is made of. Everything but History, Tokeniser, Discloser, Unattended and Now is required.
type Config struct {
	// Self is this sink: the audience that grants and permits must name. Its role says which tools are served.
	Self     identity.ID
	Trust    *trust.Folder
	Store    Store
	Recorder Recorder
	Vault    Redeemer
	// Witnessed returns an error where a human has changes wait for witnesses of the log and no quorum of them is fresh; nil: changes never
	// wait. What takes load off the host does not, nor do halts.
	Witnessed func() error
	// History is what the log knows of this sink; nil: its state is compared with nothing.
	History rollback.History
	// Tokeniser is required where a tool of this sink returns text from outside.
	Tokeniser Tokeniser
	// Discloser resolves references to personal data in arguments; nil: a call that has any is refused.
	Discloser Discloser
	Logger    *slog.Logger
	// Unattended are the calls beyond READ that run here without a human's statement: this sink's own file says so. SetUnattended
	// replaces it.
	Unattended []unattended.Entry
	// DesktopAllowed is this sink's own word on tools that control the desktop; nil: they are off.
	DesktopAllowed func() bool
	// Now is the sink's clock; nil means time.Now.
	Now func() time.Time
}

// Authority decides, for one sink, whether a call may have its effect. It is safe for concurrent use.
type Authority struct {
	cfg   Config
	self  string
	tools map[string]contract.Tool
	// catalogue holds the tools, and the RPCs under a permit, whose whole answer is the catalogue's: there is nothing to look through.
	catalogue map[string]bool
	// under are the RPCs that are no tools and take a tool's permit, by gRPC name.
	under map[string]contract.Permitted
	// operators are the streams that take no permit and that operators alone may call.
	operators map[string]bool
	permits   permitCache
	streams   streams
	leaving   leaving
	control   atomic.Pointer[Control]
	desktop   *desktop.Gate
	// unattendedList is never nil.
	unattendedList atomic.Pointer[[]unattended.Entry]
	// controlMu orders changes of the control state; readers use the pointer.
	controlMu sync.Mutex
	// beginning is held for reading while an effect begins, and for writing by what ends authority before it answers.
	beginning sync.RWMutex
	// refusedCalls are those that the chain in front refused.
	refusedCalls *refusals.Counter
	// ended are the statements that an operator ended here, until they may be forgotten; beginning guards it.
	ended map[[32]byte]time.Time
	// fence counts how often something ended here: what waits since before it is put to the vault again.
	fence atomic.Uint64

	mu         sync.Mutex
	executions map[string]*execution
	// settled are keys that the vault has heard of and that are not noted yet.
	settled []string
	// unasked are operations of interrupted calls of which the log is to be asked again; finder looks after them.
	unasked []string
	finder  Finder
	// acting counts calls that were spent and have not been answered; Wait waits for them.
	acting sync.WaitGroup
	nudge  chan struct{}

	// keeper holds the state against what the log knows.
	keeper *rollback.Keeper
}

// New checks the contract and reads the durable state. Without a Tokeniser it refuses to serve a tool whose results hold text
// from outside; and it refuses an RPC whose permit nothing can judge, and a stream under a permit that tells what is from
// outside.
func New(ctx context.Context, cfg Config) (*Authority, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	under, err := contract.UnderPermit(cfg.Self.Role())
	if err != nil {
		return nil, err
	}
	a := &Authority{
		cfg:        cfg,
		under:      under,
		operators:  contract.OperatorStreams(cfg.Self.Role()),
		streams:    streams{Places: share.Places{Each: MaxPrincipalStreams, All: MaxStreams}},
		leaving:    leaving{ends: map[*context.CancelCauseFunc]bool{}},
		self:       cfg.Self.String(),
		tools:      map[string]contract.Tool{},
		catalogue:  map[string]bool{},
		executions: map[string]*execution{},
		ended:      map[[32]byte]time.Time{},
		desktop:    desktop.New(cfg.Now),
		nudge:      make(chan struct{}, 1),
	}
	a.keeper = a.newKeeper()
	a.refusedCalls = refusals.New(refusals.Config{First: firstRefusals, Write: a.spoolRefused})
	for _, t := range contract.Tools() {
		if t.Sink != cfg.Self.Role() {
			continue
		}
		if err := a.checkOrigins(t.Name, t.Method, false); err != nil {
			return nil, err
		}
		a.tools[t.FullMethod] = t
		a.catalogue[t.FullMethod] = contract.Permitted{Method: t.Method}.AllCatalogue()
	}
	if cfg.Self.Role() == contract.ServersSink {
		if err := a.checkOrigins("a pinned tool", contract.ServersMethod, false); err != nil {
			return nil, err
		}
	}
	for method, p := range under {
		if err := a.checkOrigins(method, p.Method, p.Stream()); err != nil {
			return nil, err
		}
		a.catalogue[method] = p.AllCatalogue()
	}
	if err := a.SetUnattended(cfg.Unattended); err != nil {
		return nil, err
	}
	control, err := cfg.Store.Control(ctx)
	if err != nil {
		return nil, err
	}
	a.control.Store(&control)
	return a, nil
}

// SetUnattended replaces the list of what runs here without a human's statement, from the next call on; a call that waits for its
// turn is held to the new one too. An error leaves the list as it was.
func (a *Authority) SetUnattended(entries []unattended.Entry) error {
	if err := unattended.Check(entries, a.cfg.Self.Role()); err != nil {
		return err
	}
	list := slices.Clone(entries)
	a.unattendedList.Store(&list)
	return nil
}

// unattended reports whether a call may run on a grant without a human's statement.
func (a *Authority) unattended(c *call, arguments []byte) bool {
	return unattended.Cover(*a.unattendedList.Load(), c.tool, c.who.principal, arguments, a.cfg.Now())
}

// Control returns the epoch and whether the sink is halted.
func (a *Authority) Control() Control { return *a.control.Load() }

// Unary returns the interceptor. It runs after callers and requests were checked. An RPC that the contract puts under a READ
// tool's permit is let in and recorded as that tool's calls are, by a permit alone: a one-call grant is for the tool itself.
// Other methods that are no tools pass through.
func (a *Authority) Unary(subjects Subjects) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		message, ok := request.(proto.Message)
		if !ok {
			return nil, errors.New("a request is not a message")
		}
		tool, isTool := a.tools[info.FullMethod]
		permitted, isPermitted := a.under[info.FullMethod]
		if pinned, is, err := contract.OfServers(message); is {
			if err != nil {
				return nil, a.refuseWith(ctx, a.newCall(ctx, pinned, message), fault.From(err))
			}
			tool, isTool = pinned, true
		}
		if !isTool && !isPermitted {
			return handler(ctx, request)
		}
		if isPermitted {
			c := a.newCall(ctx, permitted.Tool, message)
			c.method = info.FullMethod
			return a.read(ctx, c, handler)
		}
		c := a.newCall(ctx, tool, message)
		c.subjects = subjects
		if tool.Tier == optionsv1.Tier_TIER_READ {
			return a.read(ctx, c, handler)
		}
		return a.mutate(ctx, c, handler)
	}
}

// Run settles what is not settled and drops what is past its time, until ctx ends.
func (a *Authority) Run(ctx context.Context) {
	retry, purge := time.NewTicker(retryInterval), time.NewTicker(purgeInterval)
	defer retry.Stop()
	defer purge.Stop()
	var telling sync.WaitGroup
	telling.Go(func() { a.keeper.Run(ctx) })
	defer telling.Wait()
	for {
		select {
		case <-ctx.Done():
			a.refusedCalls.Flush(context.WithoutCancel(ctx), true)
			return
		case <-purge.C:
			if err := a.cfg.Store.Purge(ctx, a.cfg.Now()); err != nil {
				a.cfg.Logger.ErrorContext(ctx, "old spent keys could not be dropped", "error", err)
			}
		case <-a.nudge:
			a.settleAll(ctx)
		case <-retry.C:
			a.refusedCalls.Flush(ctx, false)
			a.askAgain(ctx)
			a.settleAll(ctx)
		}
	}
}

// Wait returns when every call that was spent has been answered, or ctx ends.
func (a *Authority) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		a.acting.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// settleAll tells the vault of every outcome that it has not heard, and notes those that it has.
func (a *Authority) settleAll(ctx context.Context) {
	a.noteSettled(ctx)
	waiting, err := a.cfg.Store.Unsettled(ctx)
	if err != nil {
		a.cfg.Logger.ErrorContext(ctx, "unsettled operations could not be read", "error", err)
		return
	}
	for _, e := range waiting {
		if err := a.settle(ctx, e.Operation, e.Use, e.OK); err == nil {
			a.heard(e.Key)
		} else {
			a.cfg.Logger.DebugContext(ctx, "an operation could not be settled yet", "operation", e.Operation, "error", err)
			if !fault.FromPeer(err) {
				break // it does not answer; where it does, those behind this one do not wait for it
			}
		}
	}
	a.noteSettled(ctx)
}

// settle tells the vault how an operation ended; telling it twice does no harm.
func (a *Authority) settle(ctx context.Context, operation string, use uint32, ok bool) error {
	ctx, cancel := context.WithTimeout(ctx, vaultTimeout)
	defer cancel()
	_, err := a.cfg.Vault.Settle(ctx, &vaultv1.SettleRequest{OperationId: operation, Use: use, Ok: ok})
	// A vault that does not know the key (a new one, or one restored) never will.
	if err != nil && !fault.Is(fault.From(err), callv1.Code_CODE_NOT_FOUND) {
		return err
	}
	return nil
}

// heard remembers that the vault was told, to be written down later with others. The outcome must be kept by then: a key
// that counts as settled is not looked after any more.
func (a *Authority) heard(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled = append(a.settled, key)
}

func (a *Authority) noteSettled(ctx context.Context) {
	a.mu.Lock()
	keys := a.settled
	a.settled = nil
	a.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	if err := a.cfg.Store.Settled(ctx, keys); err != nil {
		a.cfg.Logger.ErrorContext(ctx, "settled operations could not be noted", "error", err)
	}
}

// OnRefused records a call that the chain in front refused: another role, an unknown field, a broken rule. A flood becomes a count. It
// is rpc.ServerConfig's OnRefused.
func (a *Authority) OnRefused(ctx context.Context, method string, caller identity.ID, f *fault.Error) {
	c := &call{requestID: rpc.RequestID(ctx), caller: caller}
	if t, ok := a.tools[method]; ok {
		c.tool = t
	} else if p, ok := a.under[method]; ok {
		c.tool = p.Tool
	}
	record := a.refusal(c, f)
	record.Body.Details["method"] = clean.Line(method, 200)
	a.refusedCalls.Add(ctx, refusals.Kind{Peer: caller.String(), What: record.Body.Details["method"] + " " + record.GetBody().GetReason()}, record)
}

// spoolRefused is the Write of refused calls.
func (a *Authority) spoolRefused(ctx context.Context, record *auditv1.Record, more uint64) {
	refusals.Note(record, "suppressed", more)
	if err := a.cfg.Recorder.Spool(context.WithoutCancel(ctx), record); err != nil {
		a.cfg.Logger.ErrorContext(ctx, "a refusal could not be recorded", "method", record.GetBody().GetDetails()["method"], "more", more, "error", err)
	}
}
