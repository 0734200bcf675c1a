# Two commands do everything: `make demo` and `make test`. Both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Versions of SGLang for the engine tests: all of them on the first, the most important ones on each.
ENGINES ?= 0.5.21 0.5.17
VLLM ?= vllm-0.32.0
TEST_VLLM = PENSTOCK_TEST_ENGINES="$(VLLM)" $(BIN)/pytest tests/engine
# Which engine to try things on: sglang or vllm.
ENGINE ?= sglang
OTHERS := $(filter-out $(firstword $(ENGINES)),$(ENGINES))
SPACE := $(subst ,, )
OTHERS_OR := $(subst $(SPACE), or ,$(OTHERS))
SOAK_CPU_S ?= 3600
SOAK_KILLS ?= 1000
LOCKSTEP_STEPS ?= 10000
SOAK_FLEET_KILLS ?= 200
SOAK_FLEET_ENGINES ?= doubles
SOAK_INPUTS ?= 1000000
export PYTHONUNBUFFERED := 1

.PHONY: help install debian-tools demo test test-core test-parts test-units test-whole test-no-engine test-quick test-engine test-engine-first test-engine-others test-core-and-units test-engine-vllm test-vllm-and-others test-vllm-if-possible engine-env engine-env-vllm engine agent-env lint style types soak-faults soak-kills soak-fleet soak-malformed soak-lockstep bench proto docs clean engine-choice

help: ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: $(VENV)/.installed ## a virtual environment with everything

$(VENV)/.installed: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than 3.11: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m compileall -q controlplane engine_hooks # as pip does with what it copies; tests start many processes
	@touch $@

# Real traces where they lie beside this checkout; else the demo makes programs up.
DEMO_TRACE := $(firstword $(sort $(wildcard ../shared/traces/isobench*.jsonl.gz)))

demo: install ## NATS, daemon and engine double on agent traces: fcfs, then penstock, and a report
	$(BIN)/penstock demo $(if $(DEMO_TRACE),--trace $(DEMO_TRACE)) $(DEMO_ARGS)

# Most tests wait for processes half of their time, so that five rows of them run side by side: of types, the core and
# the units, of the parts, of the whole, with the real SGLang, and with the real vLLM (then other versions of SGLang).
test: engine-choice style ## everything that CI runs; PENSTOCK_NO_ENGINE=1 leaves test-engine out
	@$(MAKE) --no-print-directory -j5 -Oline test-core-and-units test-parts test-whole \
		$(if $(PENSTOCK_NO_ENGINE),test-no-engine,test-engine-first test-vllm-and-others)

test-core-and-units: test-core
	@$(MAKE) --no-print-directory test-units

test-vllm-and-others: test-vllm-if-possible
	$(if $(OTHERS),@$(MAKE) --no-print-directory test-engine-others)

test-core: types debian-tools
	$(BIN)/coverage run -m pytest tests/unit/core tests/property
	$(BIN)/coverage report
	$(BIN)/pytest tests/fleet

test-parts: install debian-tools
	$(BIN)/pytest tests/faults tests/growth tests/kills tests/malformed tests/integration

test-units: install debian-tools
	$(BIN)/pytest tests/parity tests/unit --ignore=tests/unit/core

test-whole: install agent-env
	$(BIN)/pytest tests/agents tests/day tests/e2e tests/house

test-no-engine:
	@echo "left out, as PENSTOCK_NO_ENGINE asks: the tests with the real SGLang"

engine-choice:
	@if [ "$$CI" = true ] && [ -n "$$PENSTOCK_NO_ENGINE" ]; then \
	echo "CI does not leave the tests with the real SGLang out: unset PENSTOCK_NO_ENGINE" >&2; exit 1; fi

test-quick: install ## unit and property tests
	$(BIN)/pytest tests/unit tests/property

test-engine: test-engine-first $(if $(OTHERS),test-engine-others) ## the real SGLang on the CPU, with the plugin, the daemon and NATS

test-engine-first: engine-env
	PENSTOCK_TEST_ENGINES="$(ENGINES)" $(BIN)/pytest tests/engine $(if $(OTHERS),-k "not ($(OTHERS_OR))")

test-engine-others: engine-env
	PENSTOCK_TEST_ENGINES="$(ENGINES)" $(BIN)/pytest tests/engine -k "$(OTHERS_OR)"

test-engine-vllm: engine-env-vllm ## the same with the real vLLM, what it has in common with SGLang and what is its own
	$(TEST_VLLM)

# The environment needs a CPU build of torch, which not every index offers: CI does not do without, others may.
# Behind SGLang's environments, so that the longest row, SGLang's, begins first.
test-vllm-if-possible: install | engine-env
	@if $(BIN)/python scripts/engine_env.py --version $(VLLM); then $(TEST_VLLM); \
	else [ "$$CI" != true ] && echo "left out: the tests with the real vLLM" >&2; fi

engine-env: install ## the real SGLang for CPU, in environments of its own (3 GB, two minutes, kept)
	@for version in $(ENGINES); do $(BIN)/python scripts/engine_env.py --version $$version || exit 1; done

engine-env-vllm: install ## the real vLLM for CPU, likewise (3 GB, four minutes, kept)
	@$(BIN)/python scripts/engine_env.py --version $(VLLM)

engine: $(if $(filter vllm,$(ENGINE)),engine-env-vllm,engine-env) ## a real engine on the CPU with the plugin and a small model, to try things on (ENGINE=vllm, ENGINE_ARGS=--help)
	@$(BIN)/python scripts/cpu_engine.py --engine $(ENGINE) $(ENGINE_ARGS)

agent-env: install ## OpenHands and other agent frameworks, in an environment of their own (a GB, two minutes, kept)
	@$(BIN)/python scripts/agent_env.py || { [ "$$CI" != true ] && echo "their tests are skipped" >&2; }

debian-tools: install ## Chromium and Prometheus for some tests (Debian's, where root may have them)
	@$(BIN)/python scripts/debian_tools.py || { [ "$$CI" != true ] && echo "their tests are skipped" >&2; }

lint: style types ## format, lint, types, rooms

style: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy
	$(BIN)/lint-imports

soak-faults: install ## more seeds of the simulator of faults, for an hour of CPU (SOAK_CPU_S=3600)
	$(BIN)/python -m tests.faults --seeds 100: --cpu-s $(SOAK_CPU_S)

soak-kills: install ## a thousand kills of real processes under load (SOAK_KILLS=1000)
	$(BIN)/python -m tests.kills --kills $(SOAK_KILLS)

soak-fleet: install ## two hundred faults of a whole fleet: NATS, Envoys, daemons, engines (SOAK_FLEET_KILLS=200 SOAK_FLEET_ENGINES=real)
	$(BIN)/python -m tests.fleet --kills $(SOAK_FLEET_KILLS) --engines $(SOAK_FLEET_ENGINES)

soak-malformed: install ## a million malformed inputs for everything that reads from outside (SOAK_INPUTS=1000000)
	$(BIN)/python -m tests.malformed --inputs $(SOAK_INPUTS)

soak-lockstep: engine-env ## 10,000 steps of SGLang with two tensor-parallel ranks that must decide alike (LOCKSTEP_STEPS=10000)
	PENSTOCK_TEST_ENGINES="$(firstword $(ENGINES))" PENSTOCK_TEST_LOCKSTEP_STEPS=$(LOCKSTEP_STEPS) \
	$(BIN)/pytest tests/engine/test_engine_lockstep.py --log-cli-level=INFO

bench: install ## every benchmark, with its budget
	@for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

proto: install ## generate wire code from proto/
	$(BIN)/python scripts/generate_proto.py

docs: install ## generate the reference pages and the dashboard from the code, and the site into site/
	$(BIN)/python scripts/generate_reference.py
	$(BIN)/python scripts/generate_dashboard.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist site *.egg-info
