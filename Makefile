# `make run` starts everything on this machine, `make test` is what CI runs.
.PHONY: run test quick check bench soak screenshot clean lock dev chromium jdbc

export UV_SYSTEM_CERTS = 1
export UV_PYTHON_DOWNLOADS = never

FITS = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
MISFIT = Poisonweb needs Python 3.11, 3.12 or 3.13; here is: $(shell python3 -V 2>&1)
PYTHON = $(or $(shell \
	for python in python3 python3.13 python3.12 python3.11; do \
		"$$python" -c '$(FITS)' 2>/dev/null && echo "$$python" && break; \
	done),$(error $(MISFIT)))
INSTALL = $(PYTHON) -P poisonweb/embedded/install.py
PYTEST = .venv/bin/python -m pytest

run:
	@$(INSTALL)
	@exec .venv/bin/python -m poisonweb.embedded

# They measure seconds, so nothing runs beside them.
TIMED = $(addprefix tests/acceptance/test_,hung_redis.py kills.py sample.py)
SLOW = acceptance or browser or spark

# Tests start Java often and for seconds: what it would compile best is never worth it.
test soak: export JDK_JAVA_OPTIONS = -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

test: check chromium jdbc quick
	$(PYTEST) --numprocesses 2 --dist loadfile --durations 15 -m "$(SLOW)" $(TIMED:%=--ignore=%)
	$(PYTEST) $(TIMED)

quick: dev
	$(PYTEST) --numprocesses auto -m "not ($(SLOW))"

# No check asks a server anything; the settings only want to know where they would be.
check: export DATABASE_URL = postgresql://nobody@127.0.0.1:1/none
check: export CELERY_BROKER_URL = redis://127.0.0.1:1/0
check: export POISONWEB_SECRET_KEY = check
check: dev
	.venv/bin/ruff format --check --quiet
	.venv/bin/ruff check --quiet
	.venv/bin/python -m mypy
	.venv/bin/lint-imports
	.venv/bin/python -W ignore manage.py makemigrations --check --dry-run
	.venv/bin/hadolint Dockerfile
	.venv/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yaml

bench: dev
	@for file in benchmarks/[a-z]*.py; do \
		PYTHONPATH=. .venv/bin/python "$$file" || exit 1; \
	done

# The fault tests in their written sizes: hours.
soak: dev chromium jdbc
	SOAK=1 $(PYTEST)

# The README's picture, of the sample as everybody sees it.
screenshot: export SCREENSHOT = $(CURDIR)/docs/reports.png
screenshot: dev chromium
	$(PYTEST) tests/browser/test_first_hour.py

clean:
	@if [ -e var/run/lock ] && ! flock --nonblock var/run/lock true; then \
		echo "poisonweb: it is running here: stop it first." >&2; exit 1; \
	fi
	rm -rf .venv .boot var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Compile the pins anew after a change of an .in file.
COMPILE = .boot/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate
lock: dev
	$(COMPILE) --universal --python-version 3.11 requirements.in -o requirements.txt
	cd poisonweb/embedded/requirements && for name in uv postgres build; do \
		../../../$(COMPILE) --universal --python-version 3.11 $$name.in -o $$name.txt; \
	done
	cd poisonweb/embedded/requirements && \
		../../../$(COMPILE) --no-deps --python-version 3.12 redis.in -o redis.txt
	cd spark && ../$(COMPILE) --universal --python-version 3.11 requirements.in -o requirements.txt
	$(COMPILE) --universal --python-version 3.11 requirements-dev.in -o requirements-dev.txt

dev:
	@$(INSTALL) dev

# The package of Debian $(1), for the $(2): root gets it, others are told.
FROM_DEBIAN = { \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	echo "poisonweb: installing $(1) for the $(2) ..." >&2 && \
	apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes \
		--no-install-recommends $(1) >/dev/null; \
} || { \
	echo "poisonweb: the $(2) need $(1): install it, or make quick." >&2; \
	exit 1; \
}

chromium:
	@command -v chromium >/dev/null || $(call FROM_DEBIAN,chromium,browser tests)

jdbc:
	@test -e /usr/share/java/postgresql.jar || \
		$(call FROM_DEBIAN,libpostgresql-jdbc-java,Spark tests)
