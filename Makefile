# Everything runs from .venv, which `make` sets up by itself: only Python 3.10+ must be there.
# Downloads and servers for tests lie in .cache; Spark's jars in ~/.ivy2*, where Spark keeps them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Else each command of a test compiles our modules, and each process of pytest all tests: minutes in all.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
SOURCE ?= postgres
VENV := .venv
RUN := .ci/with-java
LOG_STORE := merge/java/deltatide-log-store.jar
PYTEST := $(RUN) $(VENV)/bin/python -m pytest

.PHONY: help demo test test-unit test-spark test-matrix test-integration test-acceptance soak lint format screenshots bench bench-large chaos wheel notebooks audit sbom clean setup

help:  ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 20

demo: setup  ## capture, dump and merge a live database, and compare row by row (SOURCE=mariadb or mysql)
	@case "$(SOURCE)" in mariadb) .ci/fetch-servers mariadb ;; mysql) .ci/fetch-servers mysql_8 ;; esac
	@$(RUN) $(VENV)/bin/deltatide demo --source "$(SOURCE)" $(ARGS)

test: $(VENV)/ready .cache/java.ready  ## lint, then the tests but for the long ones: unit, spark, integration, acceptance
	@# Much of the setup waits for downloads.
	@$(MAKE) -j 3 setup lint .cache/servers.ready
	@# Four processes on two cores, a file at a time, in the order of tests/support/side_by_side.py.
	@$(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder tests/acceptance tests/spark tests/integration tests/unit $(ARGS)

test-unit: $(VENV)/ready  ## tests that need no service
	@$(VENV)/bin/python -m pytest tests/unit $(ARGS)

test-spark: setup  ## tests with one local Spark session
	@$(PYTEST) tests/spark $(ARGS)

test-matrix: setup  ## Spark tests on each Spark release and kind of session (ARGS="--spark 3.5,4.2 --session connect tests/spark/test_job.py")
	@.ci/test-matrix $(VENV) $(ARGS)

test-integration: setup .cache/servers.ready  ## tests with real databases and a real S3 server
	@$(PYTEST) tests/integration $(ARGS)

test-acceptance: setup .cache/servers.ready  ## tests of the installed command
	@$(PYTEST) tests/acceptance $(ARGS)

soak: setup .cache/servers.ready  ## the long forms of tests
	@.ci/fetch-servers image
	@$(PYTEST) tests/acceptance tests/spark tests/integration -m soak --timeout 7200 $(ARGS)
	@$(PYTEST) tests/unit -m hypothesis --hypothesis-profile soak --timeout 7200 $(ARGS)

lint: $(VENV)/ready  ## ruff and mypy --strict
	@echo "lint: ruff, mypy"
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --check --quiet .
	@$(VENV)/bin/mypy --no-error-summary

format: $(VENV)/ready  ## sort imports and format
	@$(VENV)/bin/ruff check --quiet --fix --select I .
	@$(VENV)/bin/ruff format --quiet .

screenshots: $(VENV)/ready  ## take the README's pictures of the status page, in headless Chromium
	@.ci/fetch-servers chromium
	@$(VENV)/bin/python -m tests.screenshots

bench: setup  ## measure against the databases' own tools (ARGS="--source mariadb"), print a table, write bench.json
	@.ci/fetch-servers mariadb
	@$(RUN) $(VENV)/bin/python -m tests.bench $(ARGS)

bench-large: setup  ## measure merges into a table of 10 million rows and its verification (ARGS="--rows 30000000 --only verify"), write bench-large.json
	@$(RUN) $(VENV)/bin/python -m tests.bench.large $(ARGS)

chaos: setup .cache/servers.ready  ## reliability figures: live writers amid faults of everything (ARGS="--minutes 60 --seed 1 --source mariadb")
	@$(RUN) $(VENV)/bin/python -m tests.chaos $(ARGS)

wheel: setup  ## the wheel, with the log store's jar in it, in dist/
	@$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

notebooks:  ## write the Databricks sources of the notebooks, in conf/databricks/notebooks
	@$(PYTHON) .ci/databricks-notebooks

audit: $(VENV)/ready  ## known vulnerabilities of the packages in the lock file (status 2: they can't be looked up here)
	@$(VENV)/bin/python .ci/audit vulnerabilities

sbom: $(VENV)/ready  ## the environment's packages with their licenses, as CycloneDX, in dist/sbom.json
	@$(VENV)/bin/python .ci/audit sbom $(VENV)

clean:  ## remove the environment, caches and build results
	@rm -rf $(VENV) .cache $(LOG_STORE) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@rm -rf spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(VENV)/ready .cache/java.ready .cache/jars.ready  ## environment, Java and Spark's jars (part of the others)
	@:

$(VENV)/ready: pyproject.toml .ci/requirements-dev.lock .ci/make-venv
	@.ci/make-venv "$(PYTHON)" "$(VENV)"
	@touch $@

.cache/java.ready: .ci/find-java | $(VENV)/ready
	@.ci/find-java --install > /dev/null
	@mkdir -p .cache && touch $@

# The classes by which several Spark drivers commit to one lake, compiled by what Spark brings.
$(LOG_STORE): $(shell find merge/java -name '*.java') merge/spark/log_store_jar.py | $(VENV)/ready .cache/java.ready
	@echo "setup: how Spark commits"
	@$(RUN) $(VENV)/bin/python -m merge.spark.log_store_jar $@ > /dev/null

# The session's own settings say which jars; resolving them once keeps later starts quick and quiet,
# and so does an archive of Java's classes, where it can be made.
.cache/jars.ready: $(VENV)/ready .cache/java.ready $(LOG_STORE) merge/spark/session.py merge/spark/class_archive.py
	@echo "setup: Spark's jars for Delta and S3"
	@$(RUN) $(VENV)/bin/python -m merge.spark.session --resolve --class-archive > .cache/jars.log 2>&1 \
		|| $(RUN) $(VENV)/bin/python -m merge.spark.session --resolve >> .cache/jars.log 2>&1 \
		|| { tail -n 20 .cache/jars.log >&2; exit 1; }
	@touch $@

# Database releases and an S3 server beside those of the environment; what can't be had is skipped with a reason.
.cache/servers.ready: .ci/fetch-servers | $(VENV)/ready .cache/java.ready
	@.ci/fetch-servers
	@mkdir -p .cache && touch $@
