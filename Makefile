# `make run` starts everything on this machine, `make test` is what CI runs.
.PHONY: run test quick ready check bench soak screenshot clean lock dev needs

export UV_SYSTEM_CERTS = 1
export UV_PYTHON_DOWNLOADS = never
# Many programs start here: keep their compiled modules.
unexport PYTHONDONTWRITEBYTECODE

FITS = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
MISFIT = Poisonweb needs Python 3.11, 3.12 or 3.13; here is: $(shell python3 -V 2>&1)
PYTHON = $(or $(shell \
	for python in python3 python3.13 python3.12 python3.11; do \
		"$$python" -c '$(FITS)' 2>/dev/null && echo "$$python" && break; \
	done),$(error $(MISFIT)))
INSTALL = $(PYTHON) -P poisonweb/embedded/set_up_venv.py
PYTEST = .venv/bin/python -m pytest

# BROKERS has no effect any more, because every client is installed; remove it next release.
run:
	@$(INSTALL) $(BROKERS)
	@exec .venv/bin/python -m poisonweb.embedded

# Tests start Java often and for seconds only: optimising compilers do not pay off, and
# Spark's classes are mapped from an archive instead of read every time.
CLASSES = .venv/spark.jsa
# Spark's launcher reads it between quotes, with these two characters escaped.
ARCHIVE = "$(subst ",\",$(subst \,\\,$(CURDIR)))/$(CLASSES)"
MAPPED = -XX:SharedArchiveFile=$(ARCHIVE)
UNCOMPILED = -Dspark.sql.codegen.wholeStage=false \
	-Dspark.sql.codegen.factoryMode=NO_CODEGEN
test soak: export JDK_JAVA_OPTIONS = \
	-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData
soak: export SPARK_SUBMIT_OPTS = $(MAPPED)
test: export SPARK_SUBMIT_OPTS = $(MAPPED) $(UNCOMPILED)

# Every part runs, even if another one fails. `make test SEED=1` repeats the order and the
# random values of that seed, `make test CLOCK='2026-12-31 23:57'` starts every part at that
# time. If the machine lacks something, the tests go on and exit with code 3.
PARTS = .venv/bin/python -m tests.suite_parts_runner $(SEED:%=--seed %)
test: ready
	@$(PARTS) --clock '$(CLOCK)'

quick: dev
	@$(PARTS) --clock '$(CLOCK)' quick

# What the tests need on this machine: root installs it, other users get a list.
needs: dev
	@.venv/bin/python -m tests.machine_requirements

# Both use one processor or wait: side by side they take half the time.
ready: dev
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target $(CLASSES) needs

# If Spark does not start, its tests say why; without this file they are only slower.
$(CLASSES): export SPARK_SUBMIT_OPTS = -XX:ArchiveClassesAtExit=$(ARCHIVE) $(UNCOMPILED)
$(CLASSES): tests/spark/java_class_preloading.py spark/requirements.txt | dev
	@PYTHONPATH=. .venv/bin/python $< >$@.log 2>&1 || tail $@.log >&2

# The checks use no server; the settings only need addresses.
CHECKS = format lint types imports dead requirements migrations dockerfile compose \
	collected
.PHONY: $(CHECKS)
check: $(CHECKS)
$(CHECKS): export DATABASE_URL = postgresql://nobody@127.0.0.1:1/none
$(CHECKS): export CELERY_BROKER_URL = redis://127.0.0.1:1/0
$(CHECKS): export POISONWEB_SECRET_KEY = check
$(CHECKS): dev
format:
	.venv/bin/ruff format --check --quiet
lint:
	.venv/bin/ruff check --quiet
types:
	.venv/bin/python -m mypy
imports:
	.venv/bin/lint-imports
dead:
	.venv/bin/python -m tests.dead_code
# The product, the reports and the SDK run without the packages of the others, so each is
# compared with its own requirements; then everything with those of the tests.
DEPTRY = .venv/bin/python -W ignore -m deptry --no-ansi --config
PINS = requirements.in,apps/brokers/requirements/rabbitmq.in,apps/brokers/requirements/sqs.in
requirements:
	$(DEPTRY) .deptry.toml apps poisonweb -rf $(PINS)
	$(DEPTRY) .deptry.toml spark -rf spark/requirements.in
	$(DEPTRY) sdk/pyproject.toml sdk/poisonguard
	$(DEPTRY) .deptry.toml apps poisonweb spark sdk benchmarks tests \
		-rf $(PINS),spark/requirements.in,requirements-dev.in
migrations:
	.venv/bin/python -W ignore manage.py makemigrations --check --dry-run
dockerfile:
	.venv/bin/hadolint Dockerfile
compose:
	.venv/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yaml
# This also compiles the modules that all test workers would otherwise compile at once.
collected:
	@$(PYTEST) --collect-only -qqq >.venv/collected.log || \
		{ tail .venv/collected.log >&2; exit 1; }

bench: dev
	@for file in benchmarks/[a-z]*.py; do \
		PYTHONPATH=. .venv/bin/python "$$file" || exit 1; \
	done

# The fault tests in full size, which takes hours.
soak: needs $(CLASSES)
	SOAK=1 $(PYTEST) --timeout 0 -o faulthandler_timeout=0

# The README's picture of the sample.
screenshot: export SCREENSHOT = $(CURDIR)/docs/reports.png
screenshot: needs
	$(PYTEST) tests/browser/test_first_reports_and_readme_screenshot.py

clean:
	@if [ -e var/run/lock ] && ! flock --nonblock var/run/lock true; then \
		echo "poisonweb: it is running here: stop it first." >&2; exit 1; \
	fi
	rm -rf .venv .boot var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Compile the pinned requirements after a change of an .in file.
COMPILE = .boot/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate
lock: dev
	$(COMPILE) --universal --python-version 3.11 requirements.in -o requirements.txt
	cd poisonweb/embedded/requirements && for name in uv postgres build; do \
		../../../$(COMPILE) --universal --python-version 3.11 $$name.in -o $$name.txt; \
	done
	cd poisonweb/embedded/requirements && \
		../../../$(COMPILE) --no-deps --universal --python-version 3.11 redis.in -o redis.txt
	cd spark && ../$(COMPILE) --universal --python-version 3.11 requirements.in -o requirements.txt
	cd apps/brokers/requirements && for name in rabbitmq sqs; do \
		../../../$(COMPILE) --universal --python-version 3.11 $$name.in -o $$name.txt; \
	done
	$(COMPILE) --universal --python-version 3.11 requirements-dev.in -o requirements-dev.txt

dev:
	@$(INSTALL) dev
