# make help lists the targets.
export GOTOOLCHAIN := go1.27.3
export PATH := $(CURDIR)/.cache/promtool/usr/bin:$(PATH)
GO ?= go
# Where bench finds tokenizers and golden texts, which are not part of the repository.
BENCH_DATA ?= ../shared/data
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: build demo test check lint race bench soak generate tidy engine tools help
.DEFAULT_GOAL := help

build: ## build bin/warmpath
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/warmpath .

demo: build engine ## run the whole pipeline on generated traffic, print the report, audit it
	rm -rf .cache/demo
	bin/warmpath dev --exit --data .cache/demo
	bin/warmpath audit --data .cache/demo

test: check race ## all checks and all tests, race detector included

check: tools ## formatting, vet, staticcheck, generated files, module file
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted: $$unformatted; run gofmt -w"; exit 1; }
	$(GO) mod verify >/dev/null
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

lint: ## golangci-lint with .golangci.yml (minutes the first time: it is built from source)
	$(GO) run $(GOLANGCI) run ./...

# The clusters of the streams tests elect leaders by timers: beside other
# packages on two cores they run late.
race: tools engine
	$(GO) test -race -timeout 20m ./streams/...
	$(GO) test -race -timeout 20m $$($(GO) list ./... | grep -v '^warmpath/streams')

bench: build ## the promised figures, each judged by its bound, and Go benchmarks of the request path
	bin/warmpath bench index
	bin/warmpath bench ingest
	bin/warmpath bench route
	$(if $(wildcard $(BENCH_DATA)/tokenizers),bin/warmpath bench tokenize --data $(BENCH_DATA),@echo "bench tokenize: no tokenizers in $(BENCH_DATA); give BENCH_DATA=DIR, see warmpath bench tokenize --help")
	$(GO) test -run '^$$' -bench . -benchmem ./schemas/... ./routing/... ./engine/... ./tokenize/... ./streams/...

soak: build engine ## long property tests and kill loops, tens of minutes
	WARMPATH_SOAK=1 $(GO) test -timeout 60m -count 1 ./routing/... ./streams/... ./services/...

generate: ## regenerate the event code and the dashboards
	$(GO) run ./schemas/gen
	$(GO) run . streams roles --pools demo --gateway demo/gateway-1 $(foreach n,1 2 3 4,--bridge demo/engine-$(n)) > deploy/roles.conf
	$(GO) generate ./dashboards/...

tidy: ## tidy go.mod
	$(GO) mod tidy

# The ClickHouse engine is a shared library from npm, kept in the user's cache.
engine: build
	bin/warmpath clickhouse --install

# The race detector needs a C compiler. promtool is unpacked, not installed:
# Debian's package would start a server.
tools:
	@command -v cc >/dev/null || { echo "installing gcc: the race detector needs a C compiler"; apt-get update -qq && apt-get install -y -qq gcc libc6-dev >/dev/null; }
	@command -v promtool >/dev/null || { mkdir -p .cache/promtool && cd .cache/promtool && apt-get update -qq && apt-get download -qq prometheus && dpkg -x prometheus_*.deb .; } || echo "promtool not available: the rule tests will be skipped"

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
