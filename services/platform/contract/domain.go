package contract

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/fault"
)

// KindDomain is the kind of what a call is about that goes to other hosts. The argument that names it is a URL.
const KindDomain = "Domain"

// Destination is where a call of a tool about a domain leads; false for other tools. The error is a fault for the caller.
func (t Tool) Destination(request proto.Message) (to destination.Destination, is bool, err error) {
	if t.Resource != KindDomain {
		return to, false, nil
	}
	var raw string
	if t.Foreign != nil {
		if raw, is, err = argument(request, t.ResourceArgument); !is || err != nil {
			return to, false, err
		}
		if t.ResourcesURI() != "" && !strings.HasPrefix(raw, "http:") && !strings.HasPrefix(raw, "https:") {
			return to, false, nil // it means what the server makes of it
		}
	} else {
		raw = request.ProtoReflect().Get(t.Method.Input().Fields().ByName(protoreflect.Name(t.ResourceArgument))).String()
	}
	if _, to, err = destination.ParseURL(raw); err != nil {
		err = fault.New(callv1.Code_CODE_INVALID_ARGUMENT, err.Error(), fault.WithField(t.ResourceArgument))
	}
	return to, true, err
}
