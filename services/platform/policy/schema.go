package policy

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"
	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/contract"
)

// The types of everything that rules can look at, out of the contract.

// contextShape is what every call's context holds beside its arguments.
var contextShape = resolved.RecordType{
	"tier":            {Type: resolved.StringType{}},
	"contract_tier":   {Type: resolved.StringType{}},
	"above_ceiling":   {Type: resolved.BoolType{}},
	"channel":         {Type: resolved.StringType{}},
	"key_bound":       {Type: resolved.BoolType{}},
	"dangerous":       {Type: resolved.BoolType{}},
	"known":           {Type: resolved.BoolType{}},
	"shell":           {Type: resolved.BoolType{}},
	"desktop":         {Type: resolved.BoolType{}},
	"desktop_allowed": {Type: resolved.BoolType{}},
	"remote":          {Type: resolved.BoolType{}},
	"time": {Type: resolved.RecordType{
		"hour":    {Type: resolved.LongType{}},
		"minute":  {Type: resolved.LongType{}},
		"weekday": {Type: resolved.LongType{}},
		"unix":    {Type: resolved.LongType{}},
	}},
	"calls": {Type: resolved.RecordType{
		"session":      {Type: resolved.LongType{}},
		"day":          {Type: resolved.LongType{}},
		"month":        {Type: resolved.LongType{}},
		"since_last_s": {Type: resolved.LongType{}},
	}},
}

// schema is the contract's, made once: the compiled contract never changes.
var schema = sync.OnceValue(func() *resolved.Schema {
	s := &resolved.Schema{Entities: map[types.EntityType]resolved.Entity{}, Actions: map[types.EntityUID]resolved.Action{}}
	entity := func(name types.EntityType, parents ...types.EntityType) {
		s.Entities[name] = resolved.Entity{Name: name, ParentTypes: parents, Shape: resolved.RecordType{}}
	}
	entity(agentType, clientType)
	entity(clientType, userType, channelType)
	entity(userType)
	entity(channelType)
	entity(hostType)
	for _, kind := range resourceKinds() {
		entity(kind)
	}
	for _, group := range []types.String{groupCall, groupRun} {
		uid := types.NewEntityUID(actionType, group)
		s.Actions[uid] = resolved.Action{Entity: types.Entity{UID: uid}}
	}
	for _, t := range contract.Tools() {
		kind := hostType
		if t.Resource != "" {
			kind = types.EntityType(t.Resource)
		}
		addActions(s.Actions, t.Name, kind, argumentsShape(t.Method.Input(), required(t)))
	}
	return s
})

// resourceKinds are the types of what calls are about, sorted.
func resourceKinds() []types.EntityType {
	var kinds []types.EntityType
	for _, t := range contract.Tools() {
		if kind := types.EntityType(t.Resource); kind != "" && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

func addActions(into map[types.EntityUID]resolved.Action, name string, kind types.EntityType, arguments resolved.RecordType) {
	shape := resolved.RecordType{"arguments": {Type: arguments}}
	maps.Copy(shape, contextShape)
	for group, parents := range groups {
		uid := types.NewEntityUID(actionType, group+":"+types.String(name))
		into[uid] = resolved.Action{
			Entity: types.Entity{UID: uid, Parents: parents},
			AppliesTo: &resolved.AppliesTo{
				Principals: []types.EntityType{clientType, agentType},
				Resources:  []types.EntityType{kind},
				Context:    shape,
			},
		}
	}
}

// argumentsShape is a message's fields as the canonical form shows them. What the contract requires is there in every call.
func argumentsShape(d protoreflect.MessageDescriptor, required []string) resolved.RecordType {
	shape := resolved.RecordType{}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		shape[types.String(fd.Name())] = resolved.Attribute{Type: fieldType(fd), Optional: !slices.Contains(required, string(fd.Name()))}
	}
	return shape
}

// required names the arguments that every valid call has.
func required(t contract.Tool) []string {
	names, _ := t.InputSchema["required"].([]string)
	return names
}

func fieldType(fd protoreflect.FieldDescriptor) resolved.IsType {
	switch {
	case fd.IsMap():
		// Cedar's records have no open keys. A rule says "has KEY" before it looks at one, which the engine answers by the call's own
		// record; what follows is not type-checked.
		return resolved.RecordType{}
	case fd.IsList():
		return resolved.SetType{Element: singular(fd)}
	default:
		return singular(fd)
	}
}

func singular(fd protoreflect.FieldDescriptor) resolved.IsType {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return resolved.BoolType{}
	case protoreflect.StringKind, protoreflect.EnumKind:
		return resolved.StringType{}
	case protoreflect.MessageKind:
		return argumentsShape(fd.Message(), nil)
	default:
		return resolved.LongType{}
	}
}

// toolOf returns the tool that an action is about; empty for the groups and for what is no action of ours.
func toolOf(action types.EntityUID) string {
	if action.Type != actionType {
		return ""
	}
	if name, ok := strings.CutPrefix(string(action.ID), string(groupRun)+":"); ok {
		return name
	}
	name, ok := strings.CutPrefix(string(action.ID), string(groupCall)+":")
	if !ok {
		return ""
	}
	return name
}
