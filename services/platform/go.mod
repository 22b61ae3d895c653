// Module platform is what every process links; it is unprivileged and holds no state of its own.
module durward.internal/services/platform

go 1.26.0

replace durward.internal/proto => ../../proto

require (
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3
	github.com/goccy/go-yaml v1.19.2
	github.com/gowebpki/jcs v1.0.2
	golang.org/x/crypto v0.58.0
	golang.org/x/mod v0.42.0
)

require github.com/google/jsonschema-go v0.4.3 // indirect

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.12-20260825204119-511051f7f437.1
	buf.build/go/protovalidate v1.4.0
	durward.internal/proto v0.0.0-00010101000000-000000000000
	github.com/google/go-cmp v0.7.0
	github.com/hiddeco/sshsig v0.2.0
	github.com/pressly/goose/v3 v3.28.0
	github.com/spiffe/go-spiffe/v2 v2.9.0
	golang.org/x/sys v0.49.0 // indirect
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	modernc.org/sqlite v1.60.1
)
