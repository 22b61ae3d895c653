package rpc_test

import "google.golang.org/protobuf/reflect/protoreflect"

func protoName(s string) protoreflect.FullName { return protoreflect.FullName(s) }

func serviceDescriptor(d protoreflect.Descriptor) protoreflect.ServiceDescriptor {
	s, _ := d.(protoreflect.ServiceDescriptor)
	return s
}
