# Two commands matter: `make demo` and `make test`. Both set up what they need; Python 3.11 and make are enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
DEV    := $(VENV)/.dev
SYSTEMS := .venv-systems
JOBS   ?= auto

.PHONY: help demo test test-slow test-systems lint format weight bench chaos clean
.DEFAULT_GOAL := help

help:            ## show this help
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tunegym needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy python3-venv && $(PYTHON) -m venv $(VENV); } || { rm -rf $(VENV); exit 1; }

$(CORE): $(BIN)/python pyproject.toml constraints.txt
	@echo "setting up: the core packages"
	@$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(DEV): $(BIN)/python pyproject.toml constraints.txt
	@echo "setting up: the development packages"
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(CORE)

demo: $(CORE)    ## a real tuning job of about a minute: compression settings on generated data
	@$(BIN)/tunegym run examples/compression/compression.toml

# The report is tested in a real browser. Where chromium can't be installed, those tests say what is missing.
.PHONY: browser
browser:
	@command -v chromium > /dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || { echo "setting up: chromium"; apt-get update -q > /dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy chromium > /dev/null; } || echo "chromium can't be installed: tests of the report in a browser are skipped"

# Jobs are tested on a real Slurm of three nodes, which the tests start themselves.
SLURM := slurmctld slurmd slurm-client munge
.PHONY: slurm
slurm:
	@{ command -v slurmctld && command -v slurmd && command -v sbatch; } > /dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || { echo "setting up: Slurm"; apt-get update -q > /dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy $(SLURM) > /dev/null; } || echo "Slurm can't be installed: tests of its runner are skipped"

test: $(DEV) slurm ## the tests: under ten minutes on two cores
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'not slow and not chaos and not systems' $(ARGS)

test-slow: $(DEV) browser slurm ## the rest: killed processes, servers, browsers, learning agents
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'slow and not chaos and not systems' $(ARGS)

# Systems whose packages are too large for everybody: an environment of 2 GB for aiconfigurator and what searches it.
$(SYSTEMS)/.ready: pyproject.toml constraints.txt
	@echo "setting up: the packages of the systems"
	@$(PYTHON) -m venv $(SYSTEMS)
	@$(SYSTEMS)/bin/python -m pip install -q -c constraints.txt -e '.[systems]'
	@touch $@

test-systems: $(SYSTEMS)/.ready ## searches of real systems with a known optimum, in an environment of their own
	@$(SYSTEMS)/bin/python -m pytest -m systems $(ARGS)

lint: $(DEV)     ## ruff, pyright and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

weight: $(BIN)/python ## tokens and branches per package, branchy functions, vague variables
	@$(BIN)/python tools/weight.py

format: $(DEV)   ## let ruff format the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: $(DEV) slurm ## us and the peer side by side: CPU time, what searches find, what pruners save, who learns, live systems, data planes, runners
	@$(BIN)/python -m benchmarks.trial_overhead
	@$(BIN)/python -m benchmarks.env_overhead
	@$(BIN)/python -m benchmarks.answers
	@$(BIN)/python -m benchmarks.contexts
	@$(BIN)/python -m benchmarks.proposals
	@$(BIN)/python -m benchmarks.pruning
	@$(BIN)/python -m benchmarks.flip
	@$(BIN)/python -m benchmarks.live_overhead
	@$(BIN)/python -m benchmarks.live_cartpole
	@$(BIN)/python -m benchmarks.live_http
	@$(BIN)/python -m benchmarks.async_rl
	@$(BIN)/python -m benchmarks.dataplane
	@$(BIN)/python -m benchmarks.runners

chaos: $(DEV)    ## long fault storms
	@$(BIN)/python -m pytest -m chaos -n 1

clean:           ## remove everything that can be made again
	rm -rf $(VENV) $(SYSTEMS) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
