# Portolan. `make help` lists the targets; `make demo` and `make test` need nothing set up beforehand.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# One selection of packages everywhere: another one would turn on other features and build the dependencies again.
ALL := --locked --workspace
# Optimised, nobody runs the fuzz targets, and each is linked for a minute.
OPTIMISED := $(ALL) --exclude portolan-fuzz --release --bins
# Seconds that a test waits for what must come. Far above what any machine needs: only failures take longer by it.
test unit e2e suites conformance helm3 hostile h2spec alerts chaos moves operators policies reconnects replica-kills soak-clients soak-clients-all: export PORTOLAN_TEST_PATIENCE_SECONDS ?= 240
# Tests wait more than they compute: more of them at a time than a small machine has cores.
test unit e2e suites: export RUST_TEST_THREADS ?= 4
# Tests turn on features of dependencies. Programs that are built without them would be built of other dependencies.
test e2e conformance helm3 hostile h2spec alerts chaos moves operators policies soak-clients soak-clients-all: TARGETS := --bins --tests
TARGETS := --bins
PROFILE_DIR = $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)

# The flags of the testbed's Go programs: with others, Go would compile the standard library once more.
GO := CGO_ENABLED=0 GOWORK=off GOFLAGS="-mod=readonly -buildvcs=false" go
GO_BUILD := $(GO) build -trimpath -ldflags="-s -w"
GO_MODULES := examples/operator-go tests/clients

# Integration tests by name: those that start control planes, the longest first, those that `lint` runs, and all others.
names = $(notdir $(patsubst %/main,%,$(basename $(wildcard $(addsuffix /*.rs,$1) $(addsuffix /*/main.rs,$1)))))
SUITES := $(call names,tests/tests tests/testbed/tests)
LONG := $(filter hub faults moves,$(SUITES))
SUITES := $(LONG) $(filter-out $(LONG),$(SUITES))
# Those that run Pods on a real Node, which not every machine can have. PORTOLAN_NODE=required: without them nothing has passed.
ON_NODES := $(filter node_%,$(SUITES))
OTHERS := $(filter-out $(SUITES) $(call names,tests/structure/tests),$(call names,*/tests */*/tests))
# Gigabytes that a clean checkout needs: programs and tests, built to be built again, what Go keeps, what etcd writes. What fails of a
# full disk says little.
ROOM ?= 20
# Suites at a time. Each has up to four control planes, of half a gigabyte each.
SUITE_JOBS ?= 2

.PHONY: help demo release images alerts chaos conformance helm3 hostile h2spec model moves operators policies reconnects replica-kills skew soak soak-clients soak-clients-all test lint fmt-check clippy go-lint structure unit e2e suites bench bench-growth bench-instructions bench-policies fuzz testbed audit programs go-programs bless clean tools

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

tools:
	@at="$(abspath $(PROFILE_DIR))"; [ -e "$$at/debug/portolan-testbed" ] && need=$$(( $(ROOM) < 2 ? $(ROOM) : 2 )) || need=$(ROOM); \
		until [ -d "$$at" ]; do at=$$(dirname "$$at"); done; \
		free=$$(df -Pk "$$at" | awk 'NR == 2 { print int($$4 / 1048576) }' || true); [ "$${free:-$$need}" -ge "$$need" ] || \
		{ echo "$$free GB are free in $$at, and to build and to test takes $$need: free some, or set CARGO_TARGET_DIR to a folder that has them (ROOM=0: try all the same)" >&2; exit 1; }
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install rustup from your distribution or https://rustup.rs, then run make again" >&2; exit 1; }
	@command -v go >/dev/null || { echo "go is missing: install Go 1.26 or newer (https://go.dev/dl), then run make again; the testbed builds kube-apiserver and etcd with it" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "a C compiler is missing: install gcc or clang (aws-lc needs it), then run make again" >&2; exit 1; }

programs: tools go-programs ## build hub, agent, router, portolanctl and the examples
	$(CARGO) build $(ALL) $(TARGETS)

go-programs: tools ## build the Go example and the Go client of the tests (Go keeps its cache: a second at most when warm)
	@[ -x "$(abspath $(PROFILE_DIR))/debug/greeting-operator-go" ] || echo "building the Go programs: about two minutes if Go has nothing of them yet" >&2
	cd examples/operator-go && $(GO_BUILD) -o "$(abspath $(PROFILE_DIR))/debug/greeting-operator-go" .
	cd tests/clients && $(GO_BUILD) -o "$(abspath $(PROFILE_DIR))/debug/portolan-go-client" .

testbed: programs ## build the real control planes once (etcd, kube-apiserver, kubectl, KWOK, Jaeger, Helm; cached)
	$(PROFILE_DIR)/debug/portolan-testbed build

demo: testbed ## the main job on real control planes started here (KEEP=1 leaves it running; OPERATOR=go|rs; CANARY=1: an operator upgraded by its canary)
	$(PROFILE_DIR)/debug/portolan-demo $(if $(CANARY),--canary) $(if $(KEEP),--keep) $(if $(OPERATOR),--operator $(OPERATOR))

test: lint testbed ## everything CI runs: format, clippy, unit, integration, end-to-end, generated files
	@failed=; $(MAKE) --no-print-directory unit || failed=unit; $(MAKE) --no-print-directory suites || failed="$$failed suites"; \
		[ -z "$$failed" ] || { echo "failed: $$failed" >&2; exit 1; }

lint: fmt-check clippy go-lint structure ## format, clippy and vet, warnings are errors; who imports whom, licences, unused dependencies and files

fmt-check: tools
	$(CARGO) fmt --all --check

clippy: tools
	$(CARGO) clippy $(ALL) --all-targets -- -D warnings
	$(CARGO) clippy --locked -p portolan-crds --no-default-features -- -D warnings

structure: tools
	$(CARGO) test --locked -q -p portolan-structure

go-lint: tools
	@! gofmt -l $(GO_MODULES) tests/conformance tests/testbed/node | grep . || { echo "these are not as gofmt has them" >&2; exit 1; }
	for module in $(GO_MODULES); do (cd $$module && $(GO) vet -trimpath ./...); done

unit: tools ## unit and integration tests of every crate, and the drift of generated files
	$(CARGO) test $(ALL) --no-fail-fast --lib --bins $(addprefix --test ,$(OTHERS))
	$(CARGO) test $(ALL) --no-fail-fast --doc

e2e: testbed suites ## end-to-end tests on real control planes

# What a suite says is told when it has ended, so that it stands together. Those with Nodes come last, as the machine has room for few.
TESTBED := $(abspath $(PROFILE_DIR))/debug/portolan-testbed
suites:
	@suites="$(filter-out $(ON_NODES),$(SUITES))"; skipped=0; \
	if lacks=$$($(TESTBED) node-check 2>/dev/null); then $(TESTBED) build --nodes; suites="$$suites $(ON_NODES)"; \
	elif [ "$${PORTOLAN_NODE-}" = required ]; then echo "$$lacks" >&2; exit 1; else skipped=$(words $(ON_NODES)); fi; \
	ended=$$(mktemp); trap 'rm -f "$$ended"' EXIT; export ended; \
	printf '%s\n' $$suites | xargs -P $(SUITE_JOBS) -I{} bash -c 'out=$$($(CARGO) test $(ALL) --no-fail-fast --test {} 2>&1); code=$$?; \
		[ $$code = 0 ] && how=ok || how=FAILED; echo $$how >>"$$ended"; printf "%s: %s\n%s\n" {} $$how "$$out"' || :; \
	passed=$$(grep -c ok "$$ended" || :); failed=$$(( $$(echo $$suites | wc -w) - passed )); \
	[ $$skipped = 0 ] || printf 'no Node, so not run: $(ON_NODES)\n%s\n' "$$lacks"; \
	echo "suites: $$passed passed, $$failed failed, $$skipped skipped"; [ $$failed = 0 ]

# The same programs, but for the router, which takes a quarter less processor time for a GET: what its code does for requests lies
# together. Twenty minutes on two cores. To measure it: `make bench PORTOLAN_PROGRAMS=$PWD/target/profiled`.
PROFILED := $(abspath $(PROFILE_DIR))/profiled
release: tools ## programs for production, into target/profiled: the router is built by a profile of its own requests (needs llvm-profdata of rustc's LLVM)
	$(CARGO) build $(OPTIMISED)
	cd tests/clients && $(GO_BUILD) -o "$(abspath $(PROFILE_DIR))/release/portolan-go-client" .
	router/profiled-build.sh "$(abspath $(PROFILE_DIR))/release" "$(PROFILED)"

# Images as people install them. The same commit gives the same digests: their time is the commit's. Fifteen minutes on two cores.
IN_IMAGES := portolan-hub portolan-router portolan-agent portolanctl
IMAGES_OUT := $(abspath $(PROFILE_DIR))/images
TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
images: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
images: tools ## OCI archives of hub, router, agent and portolanctl, and their debug files, into target/images; IMAGES=registry.example.com/portolan pushes them (TAG=, SOURCE=url of the source)
	@[ -z "$(IMAGES)" ] || command -v skopeo >/dev/null || { echo "skopeo is missing, which pushes images: install the package skopeo" >&2; exit 1; }
	deploy/images/programs.sh "$(IMAGES_OUT)" "$(IMAGES_OUT)/build"
	$(CARGO) build $(ALL) --bin portolan-testbed
	$(TESTBED) images --out "$(IMAGES_OUT)" --prefix "$(or $(IMAGES),localhost)" --tag "$(TAG)" --source "$(SOURCE)" --sizes deploy/images/sizes.txt \
		--revision "$$(git describe --always --abbrev=40 --exclude '*' --dirty)" $(addprefix $(IMAGES_OUT)/,$(IN_IMAGES))
	for image in $(if $(IMAGES),$(IN_IMAGES)); do \
		skopeo copy --preserve-digests $(SKOPEO_FLAGS) "oci-archive:$(IMAGES_OUT)/$$image.tar" "docker://$(IMAGES)/$$image:$(TAG)"; done

bench: tools ## router against direct, in one run (release build)
	$(CARGO) build $(OPTIMISED)
	cd tests/clients && $(GO_BUILD) -o "$(abspath $(PROFILE_DIR))/release/portolan-go-client" .
	$(PROFILE_DIR)/release/portolan-testbed build
	$(PROFILE_DIR)/release/portolan-bench $(BENCH)

# They count instructions, by perf where it may read the processor's counters.
COUNTED = bench-growth bench-instructions bench-policies
bench-growth: ## how a router grows with members, callers and rules (release build, perf or valgrind)
bench-instructions: ## instructions of a GET beside a plain forwarder's (release build, perf or valgrind; BENCH="--max-ratio 1.25")
bench-policies: ## what limits cost a GET: without limits and with a thousand (release build, perf or valgrind)
$(COUNTED): tools
	$(CARGO) build $(OPTIMISED)
	$(PROFILE_DIR)/release/portolan-bench --only $(@:bench-%=%) $(BENCH)

# Without a sanitizer no nightly compiler is needed, and there is no unsafe code for one to watch.
fuzz: tools ## every fuzz target for FUZZ_SECONDS=60 each, or TARGET=json_list alone; finds are kept in target/fuzz
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	for target in $(or $(TARGET),$(notdir $(wildcard tests/fuzz/corpus/*))); do \
		mkdir -p $(PROFILE_DIR)/fuzz/$$target; \
		cargo fuzz run --fuzz-dir tests/fuzz --sanitizer none --features libfuzzer fuzz_$$target $(PROFILE_DIR)/fuzz/$$target tests/fuzz/corpus/$$target -- \
			-max_total_time=$(or $(FUZZ_SECONDS),60) -artifact_prefix=$(PROFILE_DIR)/fuzz/$$target- -print_final_stats=1; \
	done

skew: testbed ## members of older and newer versions of Kubernetes in one fleet: discovery, lists, watches, moves, elections (builds three API servers, minutes each, once)
	$(PROFILE_DIR)/debug/portolan-testbed build --versions
	PORTOLAN_SKEW=real $(CARGO) test $(ALL) --test skew -- --nocapture

# A hundred megabytes; six minutes of all cores when Go has nothing of it. The stamp is the version in tests/conformance/go.mod.
SPECS_OF := 1.36.3
conformance: testbed ## Kubernetes' own e2e specs past the router and through its views, as a table (VIEWS="explicit merged", SPECS="words of a name|of another")
	cd tests/conformance && $(GO) test -c -trimpath -vet=off -o "$(abspath $(PROFILE_DIR))/debug/portolan-e2e" \
		-ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v$(SPECS_OF) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" .
	PORTOLAN_CONFORMANCE_VIEWS="$(VIEWS)" PORTOLAN_CONFORMANCE_SPECS="$(SPECS)" $(CARGO) test $(ALL) --test conformance -- --include-ignored --nocapture

h2spec: testbed ## HTTP/2 by the letter: every test of h2spec, on a path that reads bodies
	cd tests/h2spec && $(GO_BUILD) -o "$(abspath $(PROFILE_DIR))/debug/h2spec" github.com/summerwind/h2spec/cmd/h2spec
	$(CARGO) test $(ALL) --test hostile -- --ignored --nocapture h2spec

# Prometheus' own tool, without what discovers targets: that is most of its code. Two minutes of all cores when Go has nothing of it.
PROMTOOL = $(abspath $(PROFILE_DIR))/debug/promtool
alerts: testbed ## alert rules: well-formed, tried by promtool, and firing under the faults that they are for, on real control planes
	cd tests/promtool && $(GO_BUILD) -tags remove_all_sd -o "$(PROMTOOL)" github.com/prometheus/prometheus/cmd/promtool
	$(PROMTOOL) check rules deploy/observability/alerts.yaml
	cd deploy/observability && $(PROMTOOL) test rules alerts_test.yaml
	$(CARGO) test $(ALL) --test alerts -- --include-ignored --nocapture

chaos: testbed ## every fault of a member, with the hub and without it (FAULTS="RST,frozen": those): what all others felt, as a table, beside a plain proxy
	PORTOLAN_CHAOS=all PORTOLAN_CHAOS_ONLY="$(FAULTS)" $(CARGO) test $(ALL) --test chaos -- --nocapture

moves: testbed ## MOVES (1000) random moves of namespaces between shards under crashes, counted by operators (PORTOLAN_SEED=<seed> draws the same; LOG=<file>: who wrote when)
	PORTOLAN_MOVES=$(or $(MOVES),1000) PORTOLAN_MOVES_LOG="$(LOG)" $(CARGO) test $(ALL) --test moves -- --nocapture

operators: testbed ## Argo Rollouts, prometheus-operator and the greeting operator in the same namespaces: MOVES (60) random moves, routers and hub killed; Argo Rollouts in a Pod by a label alone (builds both, minutes each, once; PORTOLAN_SEED=<seed> draws the same)
	$(PROFILE_DIR)/debug/portolan-testbed build --operators
	PORTOLAN_MOVES=$(MOVES) $(CARGO) test $(ALL) --test operators_together -- --include-ignored --nocapture
	if $(TESTBED) node-check; then $(CARGO) test $(ALL) --test node_injected -- --ignored --nocapture; else [ "$${PORTOLAN_NODE-}" != required ]; fi

soak: tools ## random histories of merged watches for SOAK seconds (600); a failing seed is printed
	PORTOLAN_SOAK_SECONDS=$(or $(SOAK),600) $(CARGO) test --locked -p portolan-merge --test watch -- --nocapture

soak-clients: testbed ## clients of every family under random faults for SOAK seconds (600); PORTOLAN_SEED=<seed> draws the same faults
	PORTOLAN_SOAK_SECONDS=$(or $(SOAK),600) $(CARGO) test $(ALL) --test soak_clients -- --nocapture

model: tools ## the handover's model in larger scopes than `make test` searches (minutes, gigabytes)
	$(CARGO) test --locked -p portolan-model --test handover -- --include-ignored --nocapture

hostile: testbed ## every attack by itself, then all of them for SIEGE seconds (600) while two tenants work: what they felt, beside a plain proxy
	$(CARGO) test $(ALL) --test hostile
	PORTOLAN_SIEGE_SECONDS=$(or $(SIEGE),600) $(CARGO) test $(ALL) --test hostile_siege -- --nocapture

reconnects: testbed ## CLIENTS (5000) after a restart of their router: of one caller, of 250 replicas, of a tenth as many operators (release build)
	$(CARGO) build $(OPTIMISED)
	PORTOLAN_PROGRAMS="$(abspath $(PROFILE_DIR))/release" PORTOLAN_RECONNECTS=$(or $(CLIENTS),5000) RUST_TEST_THREADS=1 $(CARGO) test $(ALL) --test reconnects -- --nocapture

policies: testbed ## DOCUMENTS (1000) random policies under load (PORTOLAN_SEED=<seed> draws the same), and a limit that two routers share for SHARED seconds (60)
	PORTOLAN_POLICY_DOCUMENTS=$(or $(DOCUMENTS),1000) $(CARGO) test $(ALL) --test policies_random -- --nocapture
	PORTOLAN_SHARED_SECONDS=$(or $(SHARED),60) $(CARGO) test $(ALL) --test policies_shared -- --nocapture

soak-previews: testbed ## the same clients while a namespace comes and goes each minute, with and without a member away (SOAK, 3600)
	PORTOLAN_SOAK_PREVIEWS_SECONDS=$(or $(SOAK),3600) $(CARGO) test $(ALL) --test soak_clients -- --nocapture

replica-kills: testbed ## KILLS (20) of the hub's leader and 8 freezes of a minute, in handovers: how long until routers have heard of the next one
	PORTOLAN_REPLICA_KILLS=$(or $(KILLS),20) RUST_TEST_THREADS=1 $(CARGO) test $(ALL) --test hub_replicas -- --nocapture

helm3: testbed ## the charts' suites with Helm 3, which is built for it alone
	PORTOLAN_HELM=helm3 $(CARGO) test $(ALL) --test charts --test node_charts

# Their packages come from PyPI and Maven Central; what is built of them stays in the target folder.
soak-clients-all: SOAK_DIR = $(abspath $(PROFILE_DIR))/soak
soak-clients-all: testbed ## the same (PREVIEWS=<seconds>: and soak-previews) with the official Python and Java clients and fabric8 (needs python3, a JDK, mvn)
	@for tool in python3 java mvn; do command -v $$tool >/dev/null || { echo "$$tool is missing" >&2; exit 1; }; done
	python3 -m venv $(SOAK_DIR)/python
	$(SOAK_DIR)/python/bin/pip install -q -r tests/clients/python/requirements.txt
	mvn -q -B -f tests/clients/java/pom.xml -Dsoak.directory=$(SOAK_DIR)/java compile dependency:copy-dependencies
	PORTOLAN_SOAK_SECONDS=$(or $(SOAK),600) PORTOLAN_SOAK_PREVIEWS_SECONDS=$(PREVIEWS) PORTOLAN_SOAK_PROGRAMS="python=$(SOAK_DIR)/python/bin/python $(abspath tests/clients/python/soak.py); \
		java=java -Xmx256m -cp $(SOAK_DIR)/java/classes:$(SOAK_DIR)/java/dependency/* dev.portolan.tests.Soak" \
		$(CARGO) test $(ALL) --test soak_clients -- --nocapture

bless: tools ## write the generated files anew (CRDs, protobuf code, fuzz seeds, policies of charts)
	$(CARGO) run --locked -q -p portolan-crds --bin crdgen -- --write
	PORTOLAN_BLESS=1 $(CARGO) test --locked -q -p portolan-wire
	PORTOLAN_BLESS=1 $(CARGO) test --locked -q -p portolan-fuzz seeds
	PORTOLAN_BLESS=1 $(CARGO) test --locked -q --workspace --bin portolanctl the_chart_has

audit: tools ## advisories, which need a database, and what lint knows of deny.toml once more by cargo-deny
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	cargo deny check

clean: ## remove what cargo built (the testbed's cache stays)
	$(CARGO) clean
