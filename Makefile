# Each target sets up all it needs; a second run finds it in place.
# PYTHON=... chooses the interpreter for .venv, DOCKER_HOST=... an engine, SBX_TEST_IMAGE=... an image.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$name"; break; }; done)
BIN := .venv/bin
SETUP := venv
ENGINE := eval "$$($(PYTHON) -m scripts.engine up)"
# Rules about cancellation that ruff does not have. Not 102 (it does not see that cleanup goes through
# _teardown.py, which the cancel sweeps prove), nor 120 (where a cancellation takes the place of the
# error that is being handled, it should).
ASYNC_RULES := ASYNC101,ASYNC103,ASYNC104,ASYNC106,ASYNC111,ASYNC112,ASYNC113,ASYNC114,ASYNC118,$\
	ASYNC119,ASYNC121,ASYNC122,ASYNC123,ASYNC125,ASYNC126,ASYNC300
PYTEST := $(BIN)/python -m pytest
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# Each with a colon behind it: with none there, an empty entry would put this folder into the PATH.
PYENV = $(subst $() ,,$(addsuffix :,$(wildcard $(HOME)/.pyenv/versions/3.1*/bin)))

help:  ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

demo: venv-demo  ## run code in a real container and prove that it cannot reach the network
	@$(ENGINE); $(BIN)/sandboxio demo --backend "docker://$$SBX_TEST_IMAGE"

test: venv  ## all tests: without an engine, the contract on the fake, on a real engine
	@scripts/run_tests.sh

unit: venv  ## the tests that need no engine
	@$(PYTEST) tests contract -m "not engine and not e2b"

e2b: venv  ## the tests that need a real E2B account (E2B_API_KEY); they create real sandboxes
	@$(PYTEST) tests contract -m e2b --require e2b

canary: venv  ## all tests with the newest releases, pre-releases too, of what we depend on
	@$(BIN)/python -m pip install --quiet --upgrade --pre anyio typing-extensions httpx h11 e2b trio opentelemetry-api
	@scripts/run_tests.sh

frameworks: venv  ## the tools of FRAMEWORK=mcp (or another extra) at VERSION=lowest or newest
	@$(ENGINE); PATH="$(PYENV)$$PATH" $(BIN)/tox run -q -e "$(FRAMEWORK)-$(VERSION)" -- --require docker

bench: venv  ## measure speed beside docker-py and others, write the page about it (a quarter of an hour)
	@$(BIN)/python -m pip install --quiet --group bench
	@$(ENGINE); $(BIN)/python -m benchmarks
	@$(BIN)/python -m scripts.gen_benchmarks

bench-check: venv  ## measure, then compare with the bounds that the project set itself
	@$(BIN)/python -m pip install --quiet --group bench
	@$(ENGINE); $(BIN)/python -m benchmarks --check

docs: venv-docs  ## build the documentation's site into site/; a warning fails
	@$(MKDOCS) build --strict

docs-serve: venv-docs  ## show the site at http://127.0.0.1:8000 while you write
	@$(MKDOCS) serve

engine: python  ## bring up a Docker engine and a test image, print the variables that name them
	@$(PYTHON) -m scripts.engine up

engine-down: python  ## stop the engine that 'make engine' started
	@$(PYTHON) -m scripts.engine down

engines: venv  ## the contract on every engine, channel and loop, as one table (SBX_ENGINES="docker26 podman")
	@$(BIN)/python -m scripts.engines_matrix

engines-down: python  ## take down the engines that 'make engines' brought up beside the first one
	@$(PYTHON) -m scripts.engines down

lint: $(SETUP)  ## style, and mistakes that can be seen without running
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/flake8-async --anyio --enable=$(ASYNC_RULES) $$(git ls-files 'src/*.py')
	@BIN=$(BIN) scripts/lint_workflows.sh

types: $(SETUP)  ## mypy and pyright, both strict
	@$(BIN)/mypy
	@$(BIN)/pyright

pythons: venv  ## unit tests on each Python that is here, with the lowest versions, from the wheel
	@PATH="$(PYENV)$$PATH" $(BIN)/tox run -q -e py311,py312,py313,lowest,wheel

all: lint types test  ## what has to pass before a change goes in

clean:  ## remove what these targets made in this folder, .venv included
	@rm -rf .venv .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: python
	@$(PYTHON) scripts/setup_venv.py dev

venv-demo: python
	@$(PYTHON) scripts/setup_venv.py demo

venv-docs: python
	@$(PYTHON) scripts/setup_venv.py docs

python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with venv was found: install one" \
		"(Debian: apt-get install python3 python3-venv), or say PYTHON=/path/to/python." >&2; exit 1; }

.PHONY: help demo test unit e2b canary frameworks bench bench-check docs docs-serve engine engine-down engines engines-down lint types pythons all clean venv venv-demo venv-docs python
