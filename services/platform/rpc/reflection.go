package rpc

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// reflectionMethod is the one RPC that is not of our contract: what a server serves, for programs such as grpcurl. Operators alone may call it.
const reflectionMethod = grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName

// besidesReflection is a service's interceptor for the contract's streams. Reflection has no permit and no record: it tells what is public.
func besidesReflection(next grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.FullMethod == reflectionMethod {
			return handler(srv, stream)
		}
		return next(srv, stream, info, handler)
	}
}
