# Sourced: how the scripts compile for tests, so that what one compiled serves the next: no cgo, whether a C compiler is there or not, and
# without gRPC's page of traces, as programs are shipped. -tags on a command line takes the place of those here: it repeats grpcnotrace.
# make lint vets the tests.
# shellcheck shell=bash
export CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath -vet=off -tags=grpcnotrace"
