# An index; the work is in scripts/. `make` alone prints it.
.DEFAULT_GOAL := help
# One checkout's compiled packages serve another.
export GOFLAGS := -trimpath

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

run: ## build, make keys, start every process, print how to connect and approve
	@scripts/run.sh
test: ## every test that needs nothing but Go (PKG=services/vault/... RUN=TestScope E2E=0 for some)
	@PKG="$(PKG)" RUN="$(RUN)" E2E="$(E2E)" scripts/test.sh
real: ## the suites against real parts (npm clients, conformance, systemd, dockerd, NVML, the layout); installs what they need
	@scripts/real.sh
gpu: ## the suite for a host with a real NVIDIA card; says so where there is none (scripts/gpu.sh packs it for a host without Go)
	@scripts/gpu.sh
real-packages: ## Debian's package in a systemd of its own: twice the same bytes, installed, upgraded, tried from outside, purged
	@scripts/real-packages.sh
real-compose: ## images and deploy/compose on a Docker Engine of its own: set up, first approval, killed, replaced, started twice, down and up, a backup put back
	@scripts/real-compose.sh
conformance: ## the official MCP conformance suite, every revision (part of real)
	@scripts/conformance.sh
race: ## the unit tests under the race detector (needs a C compiler)
	@scripts/race.sh
golden-diff: ## what users and clients see, beside the goldens of deploy/e2e/golden; fails if it differs
	@scripts/golden.sh diff
golden-accept: ## rewrite the goldens
	@scripts/golden.sh accept
drill: ## attacks: hostile gateway, vault and agent, each with its negative control
	@scripts/drill.sh
soak: ## 30 min of fuzzing of the model readers; the switch drill 20 times over: kill -9 and failure at every step, two agents at once
	@scripts/soak.sh
hostile: ## hostile strings and mutants through everything that takes a string (CORPORA=DIR adds more)
	@scripts/hostile.sh
vram-report: ## published figures of GPU memory beside the estimates, with sources; fails beyond 3 %
	@scripts/vram-report.sh
detect-report: ## what the detectors find of a public corpus of personal data, misses included (CORPORA=DIR), and false alarms in logs
	@scripts/detect-report.sh
bench: ## benchmarks as ratios to named baselines, in one run
	@scripts/bench.sh
bench-document: ## deploy/docs/performance.md from the last run of make bench
	@scripts/bench.sh publish
bench-compare: ## reads of this checkout beside those of the commit BASE (the one before), in the same rounds, by benchstat; fails beyond 10 %
	@BASE="$(BASE)" scripts/bench-compare.sh
fuzz: ## each fuzz target for FUZZTIME (10s), or those of the folders in FUZZ
	@scripts/fuzz.sh $(FUZZ)
full: ## every step at full size, with its times beside its budget; hours
	@scripts/steps.sh full
lint: ## contract, generated code, modules apart, golangci-lint, testvet, documents, shellcheck
	@scripts/lint.sh
generate: ## generated code and descriptors from proto/, the tables of SECURITY.md, the references of RPCs and commands
	@scripts/generate.sh
hooks: ## a Git hook that checks format, vet and documents before each commit
	@scripts/hooks.sh
build: ## binaries into bin/
	@scripts/build.sh
packages: ## Debian's package into bin/packages (SIGNING_KEY=FILE signs its digests)
	@scripts/packages.sh
images: ## container images of each process, FROM scratch, into bin/images/durward.tar; asks no daemon and pulls nothing
	@scripts/images.sh
clean: ## what the build made (state in ~/.durward stays)
	@rm -rf bin .cache

.PHONY: help run test real real-packages real-compose gpu conformance race drill soak hostile vram-report detect-report bench bench-document bench-compare fuzz full lint generate hooks build packages images clean golden-diff golden-accept
