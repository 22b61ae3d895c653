// Module vault authenticates clients, decides, queues approvals and signs grants. It dials audit alone and never touches the host.
module durward.internal/services/vault

go 1.26.0

replace (
	durward.internal/proto => ../../proto
	durward.internal/services/platform => ../../services/platform
)

require (
	durward.internal/proto v0.0.0-00010101000000-000000000000
	durward.internal/services/platform v0.0.0-00010101000000-000000000000
)
