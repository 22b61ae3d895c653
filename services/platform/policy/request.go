package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
)

// The words of the rules.
const (
	clientType  types.EntityType = "Client"
	agentType   types.EntityType = "Agent"
	userType    types.EntityType = "User"
	channelType types.EntityType = "Channel"
	actionType  types.EntityType = "Action"
	hostType    types.EntityType = "Host"

	groupCall types.String = "call"
	groupRun  types.String = "callWithoutApproval"
)

// never is how long ago a call was that there never was, in seconds.
const never = 1<<31 - 1

// host is what a call is about whose tool names nothing.
var host = types.NewEntityUID(hostType, "this")

// groups are the parents of a tool's two actions.
var groups = map[types.String]types.EntityUIDSet{
	groupCall: types.NewEntityUIDSet(types.NewEntityUID(actionType, groupCall)),
	groupRun:  types.NewEntityUIDSet(types.NewEntityUID(actionType, groupRun)),
}

// subject is a call as the engine sees it, made as far as it is asked for.
type subject struct {
	call *Call
	// name is the tool's, as actions have it; kind is what its calls are about.
	name  string
	kind  types.EntityType
	known bool

	principal types.EntityUID
	// lineage is no principal, the principal, and all that it is in: what rules can name to mean it.
	lineage []types.EntityUID

	arguments map[string]any
	decoded   bool
	entities  *entities
}

func newSubject(s *Set, c *Call) *subject {
	t := &subject{call: c, name: ActionName(c.Tool), kind: hostType}
	if c.Tool.Resource != "" {
		t.kind = types.EntityType(c.Tool.Resource)
	}
	t.known = s.knows(t.name, c)
	client := types.NewEntityUID(clientType, types.String(c.Client))
	t.principal = client
	t.lineage = append(make([]types.EntityUID, 0, 6), types.EntityUID{}, client)
	if c.Agent != "" {
		t.principal = types.NewEntityUID(agentType, types.String(c.Client+"/"+c.Agent))
		t.lineage = append(t.lineage, t.principal)
	}
	parents := len(t.lineage)
	if c.User != "" {
		t.lineage = append(t.lineage, types.NewEntityUID(userType, types.String(c.User)))
	}
	channel := types.String(contract.WordOf(c.Channel))
	t.lineage = append(t.lineage, types.NewEntityUID(channelType, channel))
	if c.ChannelName != "" {
		t.lineage = append(t.lineage, types.NewEntityUID(channelType, channel+":"+types.String(c.ChannelName)))
	}
	t.entities = &entities{client: client, agent: t.principal, above: t.lineage[parents:]}
	return t
}

// entities answers the engine's questions about what is in what.
type entities struct {
	client, agent types.EntityUID
	above         []types.EntityUID
	group         types.String
	// parents of the client, once they were asked for.
	parents *types.EntityUIDSet
}

// Get implements types.EntityGetter.
func (e *entities) Get(uid types.EntityUID) (types.Entity, bool) {
	switch {
	case uid == e.client:
		if e.parents == nil {
			set := types.NewEntityUIDSet(e.above...)
			e.parents = &set
		}
		return types.Entity{UID: uid, Parents: *e.parents}, true
	case uid == e.agent:
		return types.Entity{UID: uid, Parents: types.NewEntityUIDSet(e.client)}, true
	case uid.Type == actionType && uid.ID != groupCall && uid.ID != groupRun:
		return types.Entity{UID: uid, Parents: groups[e.group]}, true
	}
	return types.Entity{}, false
}

// errUnreadable: the arguments cannot be shown to rules.
var errUnreadable = errors.New("the arguments cannot be read by rules")

// decode reads the arguments once.
func (t *subject) decode() error {
	if t.decoded {
		return nil
	}
	raw := t.call.Arguments
	if len(raw) == 0 {
		raw = []byte("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&t.arguments); err != nil || t.arguments == nil || dec.More() {
		return errUnreadable
	}
	t.decoded = true
	return nil
}

// resource is what the call is about.
func (t *subject) resource() (types.EntityUID, error) {
	if t.kind == hostType {
		return host, nil
	}
	if err := t.decode(); err != nil {
		return types.EntityUID{}, err
	}
	id, _ := t.arguments[t.call.Tool.ResourceArgument].(string)
	if t.kind == contract.KindDomain {
		_, to, err := destination.ParseURL(id)
		if err != nil {
			return types.EntityUID{}, errUnreadable
		}
		id = to.Host
	}
	return types.NewEntityUID(t.kind, types.String(id)), nil
}

// request makes what the engine evaluates. Only the parts that u names are in it.
func (t *subject) request(group types.String, tier optionsv1.Tier, u uses) (cedar.Request, error) {
	t.entities.group = group
	c := t.call
	context := make(types.RecordMap, 16)
	context["tier"] = types.String(contract.TierName(tier))
	context["contract_tier"] = types.String(contract.TierName(c.Tool.Tier))
	context["above_ceiling"] = types.Boolean(tier > c.Ceiling)
	context["channel"] = types.String(contract.WordOf(c.Channel))
	context["key_bound"] = types.Boolean(c.KeyBound)
	context["dangerous"] = types.Boolean(c.Dangerous && DangerousCovers(c.Tool))
	context["known"] = types.Boolean(t.known)
	context["shell"] = types.Boolean(c.Tool.Tagged("shell"))
	context["desktop"] = types.Boolean(c.Tool.Tagged("desktop"))
	context["desktop_allowed"] = types.Boolean(c.DesktopAllowed)
	context["remote"] = types.Boolean(remote(c))
	if u&usesTime != 0 {
		context["time"] = types.NewRecord(types.RecordMap{
			"hour":    types.Long(c.Now.Hour()),
			"minute":  types.Long(c.Now.Minute()),
			"weekday": types.Long((int(c.Now.Weekday())+6)%7 + 1),
			"unix":    types.Long(c.Now.Unix()),
		})
	}
	if u&usesCalls != 0 {
		context["calls"] = types.NewRecord(types.RecordMap{
			"session":      types.Long(c.Counts.Session),
			"day":          types.Long(c.Counts.Day),
			"month":        types.Long(c.Counts.Month),
			"since_last_s": types.Long(since(c.Now, c.Counts.Last)),
		})
	}
	resource := types.NewEntityUID(t.kind, "")
	if t.kind == hostType {
		resource = host
	} else if u&usesResource != 0 {
		var err error
		if resource, err = t.resource(); err != nil {
			return cedar.Request{}, err
		}
	}
	if u&usesArguments != 0 {
		if err := t.decode(); err != nil {
			return cedar.Request{}, err
		}
		record, err := asRecord(t.arguments)
		if err != nil {
			return cedar.Request{}, err
		}
		context["arguments"] = record
	}
	action := types.NewEntityUID(actionType, group+":"+types.String(t.name))
	return cedar.Request{Principal: t.principal, Action: action, Resource: resource, Context: types.NewRecord(context)}, nil
}

// since is how many whole seconds passed; a clock that was set back counts as no time.
func since(now, last time.Time) int64 {
	if last.IsZero() {
		return never
	}
	return min(max(int64(now.Sub(last)/time.Second), 0), never)
}

// maxValues bounds what rules look at in one call's arguments: sets of what strangers chose are slow to make.
const maxValues = 1024

// asRecord turns arguments into Cedar's values: whole numbers become longs, lists sets, and what Cedar has not (fractions, numbers
// beyond 64 bits) the text of it; null is an empty record.
func asRecord(object map[string]any) (types.Record, error) {
	left := maxValues
	v, err := asValue(object, &left)
	if err != nil {
		return types.Record{}, err
	}
	record, _ := v.(types.Record)
	return record, nil
}

func asValue(v any, left *int) (types.Value, error) {
	if *left--; *left < 0 {
		return nil, errUnreadable
	}
	switch v := v.(type) {
	case string:
		return types.String(v), nil
	case bool:
		return types.Boolean(v), nil
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return types.Long(n), nil
		}
		return types.String(v), nil
	case []any:
		values := make([]types.Value, len(v))
		for i, item := range v {
			var err error
			if values[i], err = asValue(item, left); err != nil {
				return nil, err
			}
		}
		return types.NewSet(values...), nil
	case map[string]any:
		record := make(types.RecordMap, len(v))
		for name, item := range v {
			value, err := asValue(item, left)
			if err != nil {
				return nil, err
			}
			record[types.String(name)] = value
		}
		return types.NewRecord(record), nil
	default:
		return types.Record{}, nil
	}
}
