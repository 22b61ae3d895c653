// Module operator is the human's side: the durward command.
module durward.internal/services/operator

go 1.26.0

replace (
	durward.internal/proto => ../../proto
	durward.internal/services/platform => ../platform
)

require (
	durward.internal/proto v0.0.0-00010101000000-000000000000
	durward.internal/services/platform v0.0.0-00010101000000-000000000000
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3
	github.com/google/go-cmp v0.7.0
	golang.org/x/crypto v0.58.0
	golang.org/x/mod v0.42.0
	golang.org/x/term v0.47.0
	google.golang.org/protobuf v1.36.12
)

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.12-20260825204119-511051f7f437.1 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/gowebpki/jcs v1.0.2 // indirect
	github.com/hiddeco/sshsig v0.2.0 // indirect
	github.com/spiffe/go-spiffe/v2 v2.9.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
)
