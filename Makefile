# Everything a person runs here. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
KILLS ?= 30

.PHONY: help setup demo test check lint types bench chaos clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip setuptools wheel

$(VENV)/.installed: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

setup: $(VENV)/.installed  ## make .venv and install muster in it

demo: $(VENV)/.installed  ## a farm, two agents and a clustering job on this machine
	@$(BIN)/python docs/examples/demo.py

check: lint types  ## lint, types, unit and property tests: about a minute
	$(BIN)/python -m pytest -q tests/unit tests/property

test: $(VENV)/.tested  ## every test
	@sh tests/prerequisites.sh
	$(BIN)/python -m pytest

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

bench: $(VENV)/.tested  ## every benchmark, each beside its peer; writes docs/benchmarks.md
	$(BIN)/python -m benchmarks

chaos: $(VENV)/.tested  ## a job while a seeded schedule kills everything: make chaos SEED=7 KILLS=200
	$(BIN)/python -m tests.chaos --seed $(SEED) --kills $(KILLS)

clean:  ## remove .venv, the demo and what tools left
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
