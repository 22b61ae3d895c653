// No module of the workspace: these files take the place of those with the same path from the root of the repository, or lie beside
// them, in the gateway that the official conformance suite tests. deploy/e2e/programs puts them there.
module durward.internal/deploy/e2e/conformance/overlay

go 1.26.0
