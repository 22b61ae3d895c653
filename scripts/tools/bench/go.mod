// Module bench pins what compares measurements. It is apart, so that nobody else builds it.
module durward.internal/scripts/tools/bench

go 1.26.7

tool golang.org/x/perf/cmd/benchstat

require (
	github.com/aclements/go-moremath v0.0.0-20210112150236-f10218a38794 // indirect
	golang.org/x/perf v0.0.0-20260908200009-22c9c6c9d4da // indirect
)
