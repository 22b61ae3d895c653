package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// Relay is what resources are read through; relay.Relay is one.
type Relay interface {
	Read(ctx context.Context, s *relay.Session, by relay.Caller, tool contract.Tool, request proto.Message) (relay.Reply, error)
	Operation(ctx context.Context, s *relay.Session, by relay.Caller, id string) (*vaultv1.GetOperationResponse, error)
	Renew(ctx context.Context, s *relay.Session, by relay.Caller, role optionsv1.Role) error
}

// Bound is one number that binds a client, for durward://config.
type Bound struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Client is who reads.
type Client struct {
	Session *relay.Session
	By      relay.Caller
	About   relay.About
}

// Reader reads resources. It is immutable and safe for concurrent use.
type Reader struct {
	relay  Relay
	bounds func(principal string) []Bound
	tools  map[string]contract.Tool
}

// New returns a Reader. bounds returns the limits that this gateway keeps for a client.
func New(r Relay, bounds func(principal string) []Bound) (*Reader, error) {
	if r == nil || bounds == nil {
		return nil, errors.New("resource: a relay and bounds are required")
	}
	b := &Reader{relay: r, bounds: bounds, tools: map[string]contract.Tool{}}
	for _, name := range []string{toolGPU, toolServices, toolService, toolModes, toolMode, toolModels, toolModel} {
		t, ok := contract.Lookup(name)
		if !ok {
			return nil, fmt.Errorf("resource: the contract has no tool %s", name)
		}
		b.tools[name] = t
	}
	return b, nil
}

// The READ tools behind the resources.
const (
	toolGPU      = "gpu_status"
	toolServices = "list_services"
	toolService  = "service_info"
	toolModes    = "list_modes"
	toolMode     = "mode_info"
	toolModels   = "list_models"
	toolModel    = "model_info"
)

// page is one resource's content in both forms: the value is its JSON.
type page struct {
	value    any
	markdown func(*document)
}

// Read returns a resource's text. Errors are faults: those of the READ tool behind it, CODE_NOT_FOUND for what is not there.
func (b *Reader) Read(ctx context.Context, c Client, u URI) (string, error) {
	p, err := b.page(ctx, c, u)
	if err != nil {
		return "", err
	}
	if u.Format == JSON {
		raw, err := json.Marshal(p.value)
		if err != nil {
			return "", fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("encode a resource: %w", err)))
		}
		return string(raw), nil
	}
	var d document
	p.markdown(&d)
	return d.String(), nil
}

func (b *Reader) page(ctx context.Context, c Client, u URI) (page, error) {
	switch u.Kind {
	case Help:
		return help(), nil
	case Config:
		return config(c.About, b.bounds(c.About.Principal)), nil
	case Results:
		return results(), nil
	case GPU:
		return b.gpu(ctx, c)
	case Services:
		return b.services(ctx, c)
	case Service:
		return b.service(ctx, c, u.ID)
	case Modes:
		return b.modes(ctx, c)
	case Mode:
		return b.mode(ctx, c, u.ID)
	case Models:
		return b.models(ctx, c)
	case Model:
		return b.model(ctx, c, u.ID)
	case Operation:
		return b.operation(ctx, c, u.ID)
	default:
		return page{}, fault.New(callv1.Code_CODE_NOT_FOUND, ErrURI.Error(), fault.WithField("uri"))
	}
}

// readTool calls a READ tool and cleans its answer, in place and as JSON.
func readTool[T proto.Message](ctx context.Context, b *Reader, c Client, name string, request proto.Message) (got T, raw json.RawMessage, err error) {
	reply, err := b.relay.Read(ctx, c.Session, c.By, b.tools[name], request)
	if fault.Is(err, callv1.Code_CODE_DENIED) {
		// Nobody is asked because somebody read a page: what policy decides on each time is the tool's.
		return got, nil, fault.New(callv1.Code_CODE_DENIED, "this cannot be read as a resource; policy decides on each call of the tool "+name, fault.WithCause(err))
	}
	if err != nil {
		return got, nil, err
	}
	answer, ok := reply.Response.(T)
	if !ok {
		return got, nil, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("a READ tool answered with a %T", reply.Response)))
	}
	hideIn(answer.ProtoReflect())
	if raw, err = envelope.Result(answer); err != nil {
		return got, nil, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(err))
	}
	return answer, raw, nil
}

// pageOf is a page with the answer of a READ tool, of which text makes the document.
func pageOf[T proto.Message](ctx context.Context, b *Reader, c Client, name string, request proto.Message, text func(*document, T)) (page, error) {
	got, raw, err := readTool[T](ctx, b, c, name, request)
	if err != nil {
		return page{}, err
	}
	return page{raw, func(d *document) { text(d, got) }}, nil
}

func (b *Reader) gpu(ctx context.Context, c Client) (page, error) {
	return pageOf(ctx, b, c, toolGPU, &executorv1.GpuStatusRequest{}, func(d *document, got *executorv1.GpuStatusResponse) {
		d.title("GPUs")
		d.line("Source of the numbers: " + cell(got.GetSource()) + ".")
		if len(got.GetGpus()) == 0 {
			return
		}
		rows := [][]string{{"GPU", "name", "used MiB", "of others MiB", "free MiB", "total MiB", "simulated", "services", "problem"}}
		for _, g := range got.GetGpus() {
			rows = append(rows, []string{
				fmt.Sprint(g.GetIndex()), g.GetName(), fmt.Sprint(g.GetMemoryUsedMib()), fmt.Sprint(g.GetMemoryForeignMib()),
				fmt.Sprint(g.GetMemoryFreeMib()), fmt.Sprint(g.GetMemoryTotalMib()), yes(g.GetSimulated()),
				strings.Join(g.GetServices(), ", "), g.GetProblem(),
			})
		}
		d.table(rows)
	})
}

func (b *Reader) services(ctx context.Context, c Client) (page, error) {
	got, raw, err := b.list(ctx, c)
	if err != nil {
		return page{}, err
	}
	return page{raw, func(d *document) {
		d.title("Services")
		if len(got.GetServices()) == 0 {
			d.line("The catalogue of this host holds no service.")
			return
		}
		rows := [][]string{{"service_id", "state", "model", "VRAM MiB", "name"}}
		for _, s := range got.GetServices() {
			rows = append(rows, []string{s.GetServiceId(), contract.WordOf(s.GetState()), s.GetModel(), fmt.Sprint(s.GetVramMib()), s.GetName()})
		}
		d.table(rows)
		d.line("VRAM is declared, not measured. Details of one: " + Scheme + prefixService + "{service_id}")
	}}, nil
}

func (b *Reader) list(ctx context.Context, c Client) (*executorv1.ListServicesResponse, json.RawMessage, error) {
	got, raw, err := readTool[*executorv1.ListServicesResponse](ctx, b, c, toolServices, &executorv1.ListServicesRequest{})
	if err != nil {
		return nil, nil, err
	}
	return got, raw, nil
}

func (b *Reader) service(ctx context.Context, c Client, id string) (page, error) {
	return pageOf(ctx, b, c, toolService, &executorv1.ServiceInfoRequest{ServiceId: &id}, func(d *document, got *executorv1.ServiceInfoResponse) {
		d.title("Service " + got.GetService().GetServiceId())
		d.table(detail(got.GetService()))
	})
}

// detail is one service as the rows of a table.
func detail(s *executorv1.ServiceDetail) [][]string {
	rows := [][]string{{"", ""}, {"state", contract.WordOf(s.GetState())}, {"healthy", yes(s.GetHealthy())}}
	for _, row := range [][]string{
		{"cause", s.GetCause()}, {"name", s.GetName()}, {"description", s.GetDescription()}, {"base_url", s.GetBaseUrl()},
		{"model", s.GetModel()}, {"GPUs", strings.Trim(fmt.Sprint(s.GetGpus()), "[]")}, {"driver", s.GetDriver()},
		{"can sleep", s.GetSleep()}, {"network expectation", s.GetNetwork()},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	rows = append(rows, []string{"VRAM MiB, declared", fmt.Sprint(s.GetVramMib())})
	if s.GetMeasuredMib() > 0 {
		rows = append(rows, []string{"VRAM MiB, measured", fmt.Sprint(s.GetMeasuredMib())})
	}
	if s.GetPinned() {
		rows = append(rows, []string{"pinned", "yes: no switch stops it"})
	}
	if s.GetRestarts() > 0 {
		rows = append(rows, []string{"restarts", fmt.Sprint(s.GetRestarts())})
	}
	if s.GetUptimeS() > 0 {
		rows = append(rows, []string{"running for", (time.Duration(s.GetUptimeS()) * time.Second).String()})
	}
	return rows
}

// operationPage is the JSON of durward://operations/{operation_id}.
type operationPage struct {
	OperationID string `json:"operation_id"`
	// State is pending, approved, running, done, denied, expired or withdrawn.
	State     string          `json:"state"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	AskedAt   string          `json:"asked_at"`
	ExpiresAt string          `json:"expires_at"`
	// Reason is what the operator said who denied it.
	Reason string `json:"reason,omitempty"`
	Next   string `json:"next"`
}

// next says what an agent does about an operation.
var next = map[vaultv1.OperationState]string{
	vaultv1.OperationState_OPERATION_STATE_PENDING:   "A human must decide, and nothing has happened yet. Ask the operator to run: durward approvals. Call wait_operation.",
	vaultv1.OperationState_OPERATION_STATE_APPROVED:  "A human approved it. Call wait_operation: it then runs, once.",
	vaultv1.OperationState_OPERATION_STATE_RUNNING:   "It was begun. Call wait_operation for the result.",
	vaultv1.OperationState_OPERATION_STATE_DONE:      "It has ended. Call wait_operation for the result.",
	vaultv1.OperationState_OPERATION_STATE_DENIED:    "A human denied it. Stop, and tell the user. Do not retry.",
	vaultv1.OperationState_OPERATION_STATE_WITHDRAWN: "It was taken back, and nothing was done.",

	vaultv1.OperationState_OPERATION_STATE_EXPIRED: "Nobody decided or came for it in time, and nothing was done. Ask again if it is still wanted.",
}

func (b *Reader) operation(ctx context.Context, c Client, id string) (page, error) {
	got, err := b.relay.Operation(ctx, c.Session, c.By, id)
	if err != nil {
		return page{}, err
	}
	todo := next[got.GetState()]
	if !slices.Contains(c.About.Tools, envelope.WaitTool) {
		todo, _, _ = strings.Cut(todo, " Call "+envelope.WaitTool)
	}
	p := operationPage{
		OperationID: id, State: contract.WordOf(got.GetState()), Tool: text(got.GetTool().GetName(), 64), Arguments: arguments(got),
		AskedAt: envelope.Time(got.GetAskedAt().AsTime()), ExpiresAt: envelope.Time(got.GetExpiresAt().AsTime()),
		Reason: text(got.GetReason(), maxReason), Next: todo,
	}
	return page{p, func(d *document) {
		d.title("Operation " + id)
		rows := [][]string{{"", ""}, {"state", p.State}, {"tool", p.Tool}, {"arguments", string(p.Arguments)},
			{"asked at", p.AskedAt}, {"expires at", p.ExpiresAt}}
		if p.Reason != "" {
			rows = append(rows, []string{"the operator said", p.Reason})
		}
		d.table(rows)
		d.line(p.Next)
	}}, nil
}

// maxReason is how much of an operator's words is shown, in characters, and maxArguments how long arguments may be to be shown,
// in bytes.
const (
	maxReason    = 500
	maxArguments = 4096
)

// arguments returns an operation's arguments as the contract reads them, without what is sensitive; nil for those of a tool
// that this gateway does not know, and for those that would make the text too long.
func arguments(got *vaultv1.GetOperationResponse) json.RawMessage {
	t, ok := contract.Lookup(got.GetTool().GetName())
	if !ok {
		return nil
	}
	m, err := t.Decode(got.GetArguments())
	if err != nil {
		return nil
	}
	raw, err := contract.Canonical(contract.Redact(m))
	var value any
	if err != nil || len(raw) > maxArguments || json.Unmarshal(raw, &value) != nil {
		return nil
	}
	if raw, err = json.Marshal(hideInValue(value)); err != nil {
		return nil
	}
	return raw
}

// MaxCompletions is how many values a completion holds.
const MaxCompletions = 100

// Complete returns the values of a template's argument that begin with what is there already, at most MaxCompletions, and
// how many there are in all. What nobody may guess, an operation's id, has none.
func (b *Reader) Complete(ctx context.Context, c Client, template, argument, prefix string) (values []string, total int, err error) {
	i := slices.IndexFunc(Templates(), func(t Template) bool { return t.URI == template })
	if i < 0 {
		return nil, 0, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "there is no such resource template", fault.WithField("ref.uri"))
	}
	var all []string
	switch {
	case argument == argFormat:
		all = []string{string(JSON)}
	case argument == argServiceID && Templates()[i].Kind == Service && !IsServiceID(prefix) && prefix != "",
		argument == argModeID && Templates()[i].Kind == Mode && !IsModeID(prefix) && prefix != "",
		argument == argModelID && Templates()[i].Kind == Model && !IsModelID(prefix) && prefix != "":
		return nil, 0, nil
	case argument == argServiceID && Templates()[i].Kind == Service, argument == argModeID && Templates()[i].Kind == Mode,
		argument == argModelID && Templates()[i].Kind == Model:
		if all, err = b.ids(ctx, c, Templates()[i].Kind); err != nil {
			return nil, 0, err
		}
	case argument == argOperationID && Templates()[i].Kind == Operation:
	default:
		return nil, 0, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the template has no such argument", fault.WithField("argument.name"))
	}
	for _, v := range all {
		if strings.HasPrefix(v, prefix) {
			values = append(values, v)
		}
	}
	total = len(values)
	return values[:min(total, MaxCompletions)], total, nil
}

// text is a text of elsewhere on one line.
func text(s string, most int) string { return clean.Line(block(s), most) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Probe judges a client as a reader of resources that it wants to be told about: CODE_INVALID_ARGUMENT for one that does not
// change by itself, and Read's faults. It returns the states of the operations among them, by id.
//
// It asks no more than that takes: the vault for each operation, the executor for its services once, if any is named. Whoever
// names none is judged by the permit that the watch takes, at the sink, each time that a watch begins.
func (b *Reader) Probe(ctx context.Context, c Client, uris ...URI) (map[string]vaultv1.OperationState, error) {
	named := map[Kind][]string{}
	watched := false
	for _, u := range uris {
		switch {
		case !u.Changes():
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "this resource does not change by itself", fault.WithField("uri"))
		case u.Kind == Operation:
		case u.ID != "":
			named[u.Kind] = append(named[u.Kind], u.ID)
		default:
			watched = true
		}
	}
	for kind, ids := range named {
		if err := b.known(ctx, c, kind, ids); err != nil {
			return nil, err
		}
	}
	// A list of the services has judged the permit that the watch takes already.
	if len(named[Service]) == 0 && (watched || len(named) > 0) {
		if err := b.relay.Renew(ctx, c.Session, c.By, b.tools[toolServices].Sink); err != nil {
			return nil, err
		}
	}
	states := map[string]vaultv1.OperationState{}
	for _, u := range uris {
		if _, seen := states[u.ID]; seen || u.Kind != Operation {
			continue
		}
		got, err := b.relay.Operation(ctx, c.Session, c.By, u.ID)
		if err != nil {
			return nil, err
		}
		states[u.ID] = got.GetState()
	}
	return states, nil
}

// known checks that there are services, modes or models with these ids.
func (b *Reader) known(ctx context.Context, c Client, kind Kind, ids []string) error {
	all, err := b.ids(ctx, c, kind)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !slices.Contains(all, id) {
			return fault.New(callv1.Code_CODE_NOT_FOUND, "no "+string(kind)+" has that id", fault.WithField(string(kind)+"_id"))
		}
	}
	return nil
}
