# walship: `make help` lists what there is. Needs Python >= 3.11, Java 17 or 21, and make.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JARS := $(VENV)/.jars
ARCHIVE := $(VENV)/.archive
# The first that is new enough; `make PYTHON=/path/to/python ...` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
# Worker processes of a test run.
JOBS ?= 4
TESTS := tests/e2e tests/unit tests/property tests/contract tests/integration tests/simulation
# Where memory has room, the files of tests are there: a sync costs nothing. Those of tests that failed are kept.
MEMORY := $(shell df -Pm /dev/shm 2>/dev/null | awk 'END { exit ($$4 < 6000) }' && ! grep -q ' /dev/shm .*noexec' /proc/mounts && \
	awk '/^MemAvailable/ && $$2 > 12e6 { print "/dev/shm" }' /proc/meminfo)
PYTEST = PYTHONDONTWRITEBYTECODE= PYTEST_DEBUG_TEMPROOT=$(MEMORY) $(BIN)/python -m pytest --durations=10
EXTRAS := spark postgres demo s3 sftp kafka timeline test dev
PEERS ?=
MINUTES ?= 1

.PHONY: help venv jars archive preflight demo test test-fast test-one test-all check release fuzz bench proto docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

preflight: # Python and Java, each in one clear line
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed and was not found. Install it, or say make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Python 3.11 or newer is needed and $(PYTHON) is not. Say make PYTHON=/path/to/a/newer/one" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments. Install its venv package (Debian: python3-venv)" >&2; exit 2; }
	@$(PYTHON) deploy/preflight.py

venv: $(READY) ## .venv with everything pinned in constraints.txt
jars: $(JARS) ## the jars that Spark needs, fetched once per user
archive: $(ARCHIVE) ## Spark's classes as its JVM loads them fastest

$(READY): constraints.txt pyproject.toml | preflight
	@echo "Installing into $(VENV) (once; PySpark is large) ..."
	@rm -f $(READY)
	@[ -x $(BIN)/python ] && $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@awk '/^[a-z]/ { on = /^(packaging|pip|setuptools|wheel)==/ } on' constraints.txt > $(VENV)/tools.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(VENV)/tools.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --require-hashes -r constraints.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check --quiet
	@$(BIN)/python -m compileall -q replication peer shell  # commands start sooner, also where Python may not keep this
	@touch $@

$(JARS): replication/tables/spark/jars.sha256 $(READY)
	@echo "Looking for the jars (fetched once per user) ..."
	@$(BIN)/python deploy/preflight.py --jars
	@touch $@

$(ARCHIVE): $(JARS)
	@echo "Archiving classes of ZooKeeper and Spark, so that they start faster (once per environment) ..."
	@$(BIN)/python -m replication.coordination.embedded
	@$(BIN)/python -m replication.tables.spark.class_archive
	@touch $@

demo: $(JARS) ## two clusters on this machine keep flight data the same
	@$(BIN)/walship demo $(DEMO)

test: $(ARCHIVE) ## what a contributor runs: 15 to 17 minutes on 2 cores that do nothing else
	$(PYTEST) -n $(JOBS) -m "not slow" $(TESTS)

test-fast: $(READY) ## no JVM, no ZooKeeper, ledgers in memory: about a minute
	WALSHIP_TEST_EXAMPLES=0.1 $(PYTEST) -n 3 -m "fast and not slow" tests/unit tests/property tests/contract

test-one: $(ARCHIVE) ## one file or test, whatever it needs: make test-one T=tests/unit/test_config.py
	@[ -n "$(T)" ] || { echo "Say which: make test-one T=tests/unit/test_config.py" >&2; exit 2; }
	$(BIN)/python -m pytest $(T)

test-all: $(ARCHIVE) ## and what is slow and rare
	WALSHIP_TEST_EXAMPLES=8 $(PYTEST) -n $(JOBS) $(TESTS)

check: $(READY) ## style, types, import arrows, generated code, known weaknesses of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_import_arrows.py
	$(BIN)/python deploy/gen_proto.py --check
	$(BIN)/python -m deploy.gen_docs --check
	$(BIN)/python -m deploy.sbom --check
	$(BIN)/python -m deploy.audit || [ $$? -eq 2 ]  # without a network it says that nothing was audited

release: $(READY) check ## wheel, SBOM and sums in dist, after an audit that must succeed
	$(BIN)/python -m deploy.audit
	rm -rf dist build && mkdir dist  # what an earlier build left would be packed, too
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m pip install --quiet --no-deps --target build/wheel dist/*.whl
	cd build/wheel && PYTHONPATH=$$PWD $(CURDIR)/$(BIN)/python -m shell.main --help > /dev/null
	rm -rf build
	$(BIN)/python -m deploy.sbom dist/walship.cdx.json
	cd dist && sha256sum * > SHA256SUMS

fuzz: $(READY) ## edited frames and messages for every decoder: make fuzz MINUTES=10
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

soak: $(ARCHIVE) ## two clusters under random kills, switchovers and failovers: make soak MINUTES=30
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: $(ARCHIVE) ## ratios and figures; PEERS="postgres hbase" runs those beside
	$(BIN)/python -m tests.bench $(if $(PEERS),--peers "$(PEERS)")

proto: $(READY) ## make replication/link/_pb from proto/walship.proto
	$(BIN)/python deploy/gen_proto.py

docs: $(READY) ## the table of verbs in the papers, from the program
	$(BIN)/python -m deploy.gen_docs

lock: ## make constraints.txt anew, with hashes, for every Python from 3.11 on
	@command -v uv > /dev/null || { echo "uv is needed: pip install uv" >&2; exit 2; }
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		$(addprefix --extra ,$(EXTRAS)) --output-file constraints.txt pyproject.toml

clean: ## remove what was made, the jars excepted
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
