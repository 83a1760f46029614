# PDX. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
# A uv on PATH is used; otherwise one is put beside the environment.
UV := $(shell command -v uv 2>/dev/null || echo $(CURDIR)/.cache/uv/bin/uv)
PIP := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip
PACKAGES := pdx_api pdx_cli pdx_cluster pdx_operator pdx_proxy pdx_sim
# Needs nothing but Python's own library.
CLUSTER := PYTHONPATH=$(CURDIR)/cluster $(PYTHON) -m pdx_cluster
TINY_MODEL := /tmp/pdx/models/tiny
SIMULATED = $(findstring --engine sim,$(subst --engine=,--engine ,$(ARGS)))
PACKAGES_FOR := PYTHONPATH=$(CURDIR)/cluster $(PYTHON) -m scripts.system_packages
# On two cores, the others wait while two run real engines and clusters (tests/conftest.py). WORKERS=0: one process.
WORKERS ?= 4
# Where the tests marked `alone` are, and those marked `paced`; the longest come first.
ALONE := tests/component/cli/bench/test_many_streams.py tests/engines/test_prefix_cache.py
PACED := tests/dashboards/test_fires.py tests/component/soak
# What builds a release has an environment of its own: a release needs no engine.
RELEASE := .cache/release
TIMES := .cache/test-times.jsonl
# Tests start hundreds of Python processes: with this variable set, each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Use
.PHONY: install
install: $(VENV)/.installed ## Install pdx and the CPU engine into .venv (locked, with hashes)

.PHONY: install-cli
install-cli: $(VENV)/.installed-cli ## Install pdx without vLLM into .venv (250 MB): every command, with simulated engines

.PHONY: compiled
compiled: install-dev ## Compile the gateway's hot modules next to its sources: it then serves twice as many requests
	@$(BIN)/pdx gateway --compile

.PHONY: install-lmcache
install-lmcache: install ## Install LMCache beside it, for `pdx up` with connector LMCache
	@$(PIP) install -q --require-hashes --no-deps -r requirements/lmcache.lock

.PHONY: install-mooncake
install-mooncake: install ## Install Mooncake's transfer engine beside it, for its example on the CPU
	@$(PIP) install -q --require-hashes --no-deps -r requirements/mooncake.lock

.PHONY: run
run: $(if $(SIMULATED),install-cli,install) ## Serve a tiny model with one prefill and one decode engine and prove that KV moved (ONCE=1: prove, then stop; ARGS="--engine sim": without vLLM)
	@$(if $(SIMULATED),:,test -f $(TINY_MODEL)/config.json || $(BIN)/pdx tiny-model $(TINY_MODEL))
	@$(BIN)/pdx up examples/tiny-cpu.yaml $(if $(ONCE),--once) $(if $(PORT),--port $(PORT)) $(ARGS)

.PHONY: images
images: ## Build the operator's and the gateway's images as archives in build/images (ARGS=--help lists the options)
	@$(PACKAGES_FOR) images
	@$(PYTHON) images/build.py --out build/images $(ARGS)

.PHONY: release-dry-run
release-dry-run: $(RELEASE)/.installed ## Build everything that a release contains into build/release, and push nothing (ARGS=--help)
	@$(PACKAGES_FOR) images
	@UV=$(UV) PYTHONPATH=$(CURDIR)/cluster $(RELEASE)/bin/python -m scripts.release $(ARGS)

.PHONY: release-names
release-names: $(RELEASE)/.installed ## Print the names under which a release is published
	@PYTHONPATH=$(CURDIR)/cluster $(RELEASE)/bin/python -m scripts.release --names

.PHONY: cluster
cluster: ## Bring up a one-node Kubernetes on this machine (CONTROL_PLANE=1: without the node, and without root)
	@$(CLUSTER) up $(if $(CONTROL_PLANE),--control-plane) $(ARGS)

.PHONY: cluster-down
cluster-down: ## End that Kubernetes and remove every trace of it, also after a crash
	@$(CLUSTER) down

.PHONY: cluster-e2e
cluster-e2e: install-dev ## From nothing to real vLLM pods on a Kubernetes of its own, and what was proved (ARGS=--keep: leave it)
	@$(PACKAGES_FOR) test
	@PYTHONPATH=$(CURDIR)/cluster $(BIN)/python -m tests.cluster.tiny $(ARGS)

##@ Develop
.PHONY: test
test: install-dev ## Run every test (a part this machine cannot run is skipped by name; CI=true makes that a failure)
	@$(PACKAGES_FOR) test
	@mkdir -p $(dir $(TIMES)) && rm -f $(TIMES)
	@parallel=0; paced=0; alone=0; \
	$(BIN)/pytest -n $(WORKERS) -m 'not soak and not alone and not paced' $(if $(CI),--maxfail=20) --times $(TIMES) $(ARGS) || parallel=$$?; \
	$(BIN)/pytest -n $(if $(filter 0 1,$(WORKERS)),0,2) -m 'paced and not soak' --times $(TIMES) $(or $(ARGS),$(PACED)) || paced=$$?; \
	$(BIN)/pytest -m 'alone and not soak' --times $(TIMES) $(or $(ARGS),$(ALONE)) || alone=$$?; \
	for code in $$parallel $$paced $$alone; do case $$code in 0 | 5) ;; *) exit $$code ;; esac; done; \
	test $$((parallel + paced + alone)) != 15 # pytest ends with 5 where it finds no test

.PHONY: unit
unit: install-dev ## Run every test that needs no socket and no process, in a minute or two
	@$(BIN)/pytest -n auto -m 'not machine and not soak' tests/unit $(ARGS)

.PHONY: soak
soak: install-dev ## Long fault campaigns and loads; results go to benchmarks/
	@$(BIN)/pytest -m soak --override-ini timeout=0 $(ARGS)

.PHONY: mutations
mutations: install-dev ## Break the gateway on purpose in many ways: a row of docs/failure-matrix.md has to notice each
	@$(BIN)/python -m tests.mutations

.PHONY: conformance
conformance: install-dev ## Every connector and order with every way to fail, in simulated engines, as one table (ARGS=--connector NIXL)
	@$(BIN)/python -m tests.conformance $(ARGS)

.PHONY: bench
bench: install-dev ## Measure the gateway beside its peers (ARGS=--help lists the options)
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

.PHONY: instructions
instructions: install-dev ## Count the compiled gateway's instructions per request; fail if one count is above the accepted one
	@$(BIN)/python -m benchmarks.instructions $(ARGS)

.PHONY: instructions-proof
instructions-proof: install-dev ## Slow two copies of the gateway down on purpose: `make instructions` has to name the function
	@$(BIN)/python -m benchmarks.instructions.proof

.PHONY: campaigns
campaigns: install-dev ## List the long runs (benchmarks, soak, cluster-e2e, ...), their last results, and which are stale
	@$(BIN)/python -m benchmarks.campaigns

.PHONY: goodput
goodput: install-dev ## Simulate policies with whole traces: who serves how much within an SLO (ARGS="--trace FILE"; --help lists the options)
	@$(BIN)/python -m benchmarks.goodput $(ARGS)

.PHONY: dashboards
dashboards: install-dev ## Run every panel's and alert's query in a Prometheus that scrapes a gateway and engines under load and faults
	@PYTHONPATH=$(CURDIR)/cluster $(BIN)/python -m tests.dashboards.show $(ARGS)

.PHONY: check
check: install-dev ## Format, lint, types, import rule, spelling, prose, links, the site, locks
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line --keep-going types all-but-types

# The types take as long as everything else: `check` runs these two at once, and make shows each command's output whole.
.PHONY: types
types: install-dev
	@$(BIN)/python -m scripts.shared_caches take-types
	@$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	@$(BIN)/mypy tests scripts
	@$(BIN)/python -m scripts.shared_caches keep-types

.PHONY: all-but-types
all-but-types: install-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@PYTHONPATH=cluster $(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python -m scripts.generate --check
	@$(BIN)/python -m scripts.site.links
	@$(BIN)/python -m scripts.site.sizes
	@$(BIN)/python -m scripts.site
	@$(BIN)/python -m scripts.prose
	@$(BIN)/python -m scripts.ownership
	@$(BIN)/python -m benchmarks.campaigns --check
	@if grep -nE '(https?|git\+[a-z]+)://' requirements/*.lock benchmarks/*/*.lock; then echo 'A lock names an address; run: make lock' >&2; exit 1; fi

.PHONY: docs
docs: install-dev ## Build the documentation site into build/site; it needs no server and no network
	@$(BIN)/python -m scripts.site
	@echo "Open build/site/index.html"

.PHONY: generate
generate: install-dev ## Write the CRD, the reference pages, the dashboards and the alerts from Python
	@$(BIN)/python -m scripts.generate

.PHONY: format
format: install-dev ## Format, and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: lock
lock: $(UV) ## Write requirements/*.lock anew (UPGRADE=1 takes newer versions)
	@$(UV) pip compile -q --universal --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) --extra cli --extra cpu pyproject.toml -o requirements/run.lock
	@$(UV) pip compile -q --universal --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) --extra cli --extra cpu --extra dev -c requirements/run.lock pyproject.toml -o requirements/dev.lock
	@$(UV) pip compile -q --universal --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) -c requirements/dev.lock images/build.in -o images/build.lock
	@$(UV) pip compile -q --universal --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) --extra mooncake -c requirements/dev.lock pyproject.toml -o requirements/mooncake.lock
	@for extra in cli gateway operator; do $(UV) pip compile -q --universal --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) --extra $$extra -c requirements/run.lock pyproject.toml -o requirements/$$extra.lock; done
	@$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) requirements/release.in -o requirements/release.lock
	@$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) benchmarks/gateway/peers.in -o benchmarks/gateway/peers.lock
	@$(UV) pip compile -q --universal --no-deps --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade) -c requirements/dev.lock requirements/lmcache.in -o requirements/lmcache.lock

.PHONY: install-dev
install-dev: $(VENV)/.installed-dev

.PHONY: clean
clean: ## Remove the environment and all caches of the checkout
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(CURDIR)/.cache/uv/bin/uv:
	@echo "Installing uv $(UV_VERSION)"
	@$(PYTHON) -m venv .cache/uv || { echo "python3 cannot make a virtual environment: install python3-venv, or uv." >&2; exit 1; }
	@.cache/uv/bin/pip install -q --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/bin/python: | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "PDX needs Python 3.11 to 3.13; this is $$($(PYTHON) --version). Name one with PYTHON=python3.x." >&2; exit 1; }
	@$(UV) venv -q --python $(PYTHON) $(VENV)

$(RELEASE)/.installed: requirements/release.lock | $(UV)
	@echo "Installing what builds a release into $(RELEASE)"
	@$(UV) venv -q --clear --python $(PYTHON) $(RELEASE)
	@VIRTUAL_ENV=$(CURDIR)/$(RELEASE) $(UV) pip install -q --require-hashes --no-deps -r requirements/release.lock
	@touch $@

$(VENV)/.installed: requirements/run.lock pyproject.toml packaging/vllm-metadata/pyproject.toml | $(VENV)/bin/python
	@echo "Installing PDX and vLLM's CPU build into $(VENV) (6 GB; a minute or two on a fresh machine)"
	@$(PIP) install --require-hashes --no-deps -r requirements/run.lock
	@$(PIP) install -q --no-deps ./packaging/vllm-metadata
	@$(PIP) install -q --no-deps -e .
	@touch $@

# A whole installation has all of it.
$(VENV)/.installed-cli: requirements/cli.lock pyproject.toml | $(VENV)/bin/python
	@test -e $(VENV)/.installed || { echo "Installing PDX without vLLM into $(VENV) (250 MB)"; \
	  $(PIP) install -q --require-hashes --no-deps -r requirements/cli.lock; $(PIP) install -q --no-deps -e .; }
	@touch $@

$(VENV)/.installed-dev: requirements/dev.lock requirements/lmcache.lock requirements/mooncake.lock $(VENV)/.installed
	@echo "Installing the development tools into $(VENV)"
	@$(PIP) install -q --require-hashes --no-deps -r requirements/dev.lock
	@$(PIP) install -q --require-hashes --no-deps -r requirements/lmcache.lock
	@$(PIP) install -q --require-hashes --no-deps -r requirements/mooncake.lock
	@$(BIN)/python -m scripts.shared_caches bytecode
	@$(BIN)/python -m tests.sdk_suite || true # their tests are skipped by name
	@touch $@
