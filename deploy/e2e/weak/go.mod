// No module of the workspace: these files take the place of those with the same path from the root of the repository, in the
// builds against which drills show that their attacks work. deploy/e2e/programs puts them there.
module durward.internal/deploy/e2e/weak

go 1.26.0
