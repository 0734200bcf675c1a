# Two commands do everything: `make demo` and `make test`. Each installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The engines of tests/engine/engine_kinds.py. CI's first environment must be there, the others' may be left out.
KINDS := sglang vllm
# Which engine make engine, engine-env and test-engine are about.
ENGINE ?= $(firstword $(KINDS))
# Of which versions: all tests on the first, the most important ones on each. An engine's name: those that are tested.
ENGINES ?= $(ENGINE)
TEST_ENGINES = PENSTOCK_TEST_ENGINES="$(1)" $(BIN)/pytest tests/engine
# What make soak runs, and how long where SOAK= does not say.
SOAK_faults = tests.faults --seeds 100: --cpu-s $(or $(SOAK),3600)
SOAK_kills = tests.kills --kills $(or $(SOAK),1000)
SOAK_fleet = tests.fleet --kills $(or $(SOAK),200) --engines $(or $(SOAK_ENGINES),doubles)
SOAK_malformed = tests.malformed --inputs $(or $(SOAK),1000000)
SOAK_lockstep = pytest tests/engine/test_engine_lockstep.py --log-cli-level=INFO
# Benchmarks without a budget: a comparison of engines takes hours, the papers' tables some minutes.
STUDIES := bench/ab_engine.py bench/fidelity.py bench/fleet_crowded.py bench/forecast.py bench/freezing.py bench/freezing_live.py bench/paper_tables.py bench/real_agents.py bench/switchback.py
export PYTHONUNBUFFERED := 1
export PENSTOCK_TEST_CPU := build/test-cpu

.PHONY: help python install debian-tools demo test test-core test-parts test-units test-whole test-no-engine test-quick test-engine $(KINDS:%=test-on-%) test-core-and-units engine-env engine-check engine agent-env lint style types soak weight bench proto docs clean engine-choice

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than 3.11: make PYTHON=python3.12"; exit 1; }

# $(call install-into-venv,EXTRA,WHAT IT TAKES): the stamp comes after all of it, so the next make goes on.
define install-into-venv
	@echo "Installing Penstock and what it needs into $(VENV): $(2)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$(1)]' \
		|| { echo "not everything was installed: run make again, and it goes on"; exit 1; }
endef

install: $(VENV)/.installed ## a virtual environment with everything

$(VENV)/.installed: pyproject.toml | python
	$(call install-into-venv,dev,1.4 GB; two minutes or more)
	@$(BIN)/python -m compileall -q controlplane engine_hooks # as pip does with what it copies; tests start many processes
	@touch $@

# What runs Penstock without its tests: a part of the whole, where that is there.
RUNS := $(VENV)/$(if $(wildcard $(VENV)/.installed),.installed,.demo)

$(VENV)/.demo: pyproject.toml | python
	$(call install-into-venv,demo,320 MB; about 40 seconds)
	@touch $@

# Real traces where they lie beside this checkout; else the demo makes programs up.
DEMO_TRACE := $(firstword $(sort $(wildcard ../shared/traces/isobench*.jsonl.gz)))

demo: $(RUNS) ## NATS, daemon and engine double on agent traces: fcfs, then penstock, and a report
	$(BIN)/penstock demo $(if $(DEMO_TRACE),--trace $(DEMO_TRACE)) $(DEMO_ARGS)

# Most tests wait for processes half of their time, so that rows of them run side by side: of types, the core and the
# units, of faults, of the parts, of the whole, and with each of the real engines.
test: engine-choice style ## everything that CI runs; PENSTOCK_NO_ENGINE=1 leaves test-engine out
	@$(MAKE) --no-print-directory -j6 -Oline test-core-and-units test-faults test-parts test-whole \
		$(if $(PENSTOCK_NO_ENGINE),test-no-engine,$(KINDS:%=test-on-%))

test-core-and-units: test-core
	@$(MAKE) --no-print-directory test-units

test-core: types debian-tools
	$(BIN)/coverage run -m pytest tests/unit/core tests/property
	$(BIN)/coverage report
	$(BIN)/pytest tests/fleet

test-faults: install
	$(BIN)/pytest tests/faults tests/growth tests/kills tests/malformed

test-parts: install debian-tools
	$(BIN)/pytest tests/integration

test-units: install debian-tools
	$(BIN)/pytest tests/parity tests/unit --ignore=tests/unit/core

test-whole: install agent-env
	$(BIN)/pytest tests/agents tests/e2e tests/house

test-no-engine:
	@echo "left out, as PENSTOCK_NO_ENGINE asks: the tests with the real SGLang"

engine-choice:
	@if [ "$$CI" = true ] && [ -n "$$PENSTOCK_NO_ENGINE" ]; then \
	echo "CI does not leave the tests with the real SGLang out: unset PENSTOCK_NO_ENGINE" >&2; exit 1; fi

test-quick: install ## unit and property tests
	$(BIN)/pytest tests/unit tests/property

test-engine: install engine-env ## the real SGLang on the CPU, with plugin, daemon and NATS; or another (ENGINE=vllm)
	$(call TEST_ENGINES,$(ENGINES))

# An environment needs a CPU build of torch, which not every index offers: CI does not do without, and nobody without
# the first; others may.
$(KINDS:%=test-on-%): test-on-%: install
	@if $(BIN)/python scripts/engine_env.py --version $*; then $(call TEST_ENGINES,$*) ; \
	else [ "$$CI" != true ] && [ $* != $(firstword $(KINDS)) ] && echo "left out: the tests with the real $*" >&2; fi

# Environments of their own, which are kept: 3 GB and two to four minutes each.
engine-env: python
	@$(PYTHON) scripts/engine_env.py --version $(ENGINES)

engine-check: python ## what of the plugin binds in any version of an engine, without a model (VERSION=vllm-0.33.0; none: the page of versions anew)
	@$(PYTHON) scripts/engine_check.py $(or $(VERSION),--write)

engine: $(RUNS) ## a real engine on the CPU with the plugin and a small model, to try things on (ENGINE=vllm, ENGINE_ARGS=--help)
	@$(BIN)/python scripts/cpu_engine.py --engine $(ENGINE) $(ENGINE_ARGS)

agent-env: install ## OpenHands and other agent frameworks, and a trainer, in environments of their own (three GB, some minutes, kept)
	@$(BIN)/python scripts/agent_env.py || { [ "$$CI" != true ] && echo "their tests are skipped" >&2; }

debian-tools: install ## Chromium, Prometheus and nginx for some tests (Debian's, where root may have them)
	@$(BIN)/python scripts/debian_tools.py || { [ "$$CI" != true ] && echo "their tests are skipped" >&2; }

lint: style types ## format, lint, types, rooms

style: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: install $(if $(filter lockstep,$(WHAT)),engine-env) ## for an hour what the tests do for a minute (WHAT=faults|kills|fleet|malformed|lockstep; SOAK= how much)
	$(if $(filter lockstep,$(WHAT)),PENSTOCK_TEST_ENGINES="$(ENGINES)" PENSTOCK_TEST_LOCKSTEP_STEPS=$(or $(SOAK),10000) )\
	$(BIN)/python -m $(or $(SOAK_$(WHAT)),$(error expected WHAT=faults, kills, fleet, malformed or lockstep))

weight: install ## what there is to carry: lines by room, words, tests and their CPU minutes, commands, options, keys
	@$(BIN)/python scripts/weight.py

bench: install ## every benchmark, with its budget
	@for file in $(filter-out $(STUDIES),$(wildcard bench/*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

proto: install ## generate wire code from proto/
	$(BIN)/python scripts/generate_proto.py

docs: install ## generate the dashboard from the code, and the site with its reference pages into site/
	$(BIN)/python scripts/generate_dashboard.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist site *.egg-info
