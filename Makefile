# Everything a person runs here. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
SCHEDULES ?= 10000
PART ?= power
MINUTES ?= 60
STUDY ?=
TIMES ?= 0
# Where tests of the page and of reports leave what they saw, in light and in dark
SCREENSHOTS ?= $(CURDIR)/build/screenshots
# Of tests at once, a file each: most of their time is waiting for other processes
WORKERS ?= 2

# pip is quiet, but its build of an editable install warns whoever works in this folder about this folder
PIP := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --disable-pip-version-check

# The oldest Python that may run users' code, where this machine has it
OLD ?= $(firstword $(shell python3.8 -c "print('python3.8')" 2>/dev/null) $(wildcard $(HOME)/.pyenv/versions/3.8.*/bin/python))

# Pythons that came with the tests of their own library, where this machine has them
SUITES ?= $(wildcard $(HOME)/.pyenv/versions/3.10.*/bin/python $(HOME)/.pyenv/versions/3.13.*/bin/python)

.PHONY: help setup demo test check lint types bench study simulate campaign arena large systemd unlike old suites wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip setuptools wheel

$(VENV)/.installed: setup.cfg pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) (once; a minute or two)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	@$(PIP) --editable '.[test]'
	@touch $@

setup: $(VENV)/.installed  ## make .venv and install muster in it

demo: $(VENV)/.installed  ## a farm, two agents and a clustering job on this machine; SSH=1: over ssh
	@$(BIN)/python docs/examples/demo.py $(if $(SSH),--ssh)

check: lint types  ## lint, types, unit and property tests: three minutes on two cores
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile tests/unit tests/property

test: $(VENV)/.tested  ## every test; what the page and reports look like is then in build/screenshots
	@sh tests/prerequisites.sh
	@mkdir -p $(SCREENSHOTS)
	MUSTER_SCREENSHOTS=$(SCREENSHOTS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

bench: $(VENV)/.tested  ## every benchmark, each beside its peer; writes docs/benchmarks.md
	@$(PIP) --editable '.[bench]'
	$(BIN)/python -m benchmarks

study: $(VENV)/.tested  ## the studies this grew from, with our figures beside theirs; goes on where it stopped: make study STUDY=infer
	@$(PIP) --editable '.[bench]'
	$(BIN)/python -m benchmarks.studies $(STUDY)

simulate: $(VENV)/.tested  ## worlds of the real scheduler and agents' cores, all else made of a seed: make simulate SEED=1 SCHEDULES=10000 KEEP=1
	$(BIN)/python -m tests.simulator --seed $(SEED) --schedules $(SCHEDULES) $(if $(KEEP),--keep)

campaign: $(VENV)/.tested  ## a part of the campaign (kills, ssh, power, full, damage), a line of JSON: make campaign PART=kills SEED=7 TIMES=200; PART=all MINUTES=60 KEEP=1
	$(BIN)/python -m tests.campaign $(PART) --times $(TIMES) --minutes $(MINUTES) $(if $(KEEP),--keep) \
		$(if $(findstring command,$(origin SEED)),--seed $(SEED))

arena: $(VENV)/.tested  ## Muster and its peers through the same faults; writes docs/arena.md: make arena SEED=1
	@$(PIP) --editable '.[bench]'
	$(BIN)/python -m tests.arena --seed $(SEED) --keep

large: $(VENV)/.tested  ## a result of 4 GB with 300 MB a process, a checkpoint of 500 MB with 2 GiB of disk
	MUSTER_LARGE_MB=4000 $(BIN)/python -m pytest -q -s tests/integration/test_large_output.py tests/integration/test_tune_large.py

systemd: $(VENV)/.tested  ## what deploy and service leave to a real systemd and a real cron, in two Debians that are booted; as root
	@sh tests/prerequisites.sh mmdebstrap:mmdebstrap systemd-nspawn:systemd-container
	$(BIN)/python -m tests.systemd

unlike: $(VENV)/.tested  ## deploy to six unlike machines in namespaces, from up to down, with an upgrade in the middle; as root
	@sh tests/prerequisites.sh
	$(BIN)/python -m tests.unlike_machines

old: $(VENV)/.tested  ## users' code in Python 3.8 with its last numpy, if there is one: make old OLD=python3.8
ifeq ($(OLD),)
	@echo "no python3.8 here: OLD= names one"
else
	$(OLD) -m venv $(VENV)/old
	@PYTHONWARNINGS=ignore $(VENV)/old/bin/pip install --quiet --disable-pip-version-check numpy
	MUSTER_TEST_RUNNER=$(CURDIR)/$(VENV)/old/bin/python $(BIN)/python -m pytest -q tests/contract/test_runner.py
endif

suites: $(VENV)/.tested  ## joblib's own tests of backends, and CPython's of executors: make suites SUITES="python3.10 python3.13"
	@for python in $(SUITES); do \
		folder=$(VENV)/suites/$$($$python -c 'import platform; print(platform.python_version())') && \
		$$python -m venv $$folder && \
		PYTHONWARNINGS=ignore $$folder/bin/pip install --quiet --disable-pip-version-check --editable '.[pickle]' || exit 1; \
	done
	MUSTER_ALL_SUITES=1 MUSTER_SUITE_PYTHONS="$$(ls -d $(VENV)/suites/*/bin/python 2>/dev/null)" \
		$(BIN)/python -m pytest -q tests/integration/test_joblib_suite.py tests/integration/test_stdlib_suite.py

wheel: $(VENV)/.tested  ## sdist and wheel into dist, tried in an empty environment
	@$(BIN)/python -m tests.wheel

clean:  ## remove .venv, the demo and what tools left
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
