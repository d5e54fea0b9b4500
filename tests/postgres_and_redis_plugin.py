"""A pytest plugin: real Postgres and Redis for the whole run, before Django loads.

Only the controller starts them; the workers of xdist inherit its environment, but each
has a Celery queue of its own: a test's worker must not get the tasks of another's.
Servers that the environment names already are used as they are.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from poisonweb.embedded import postgres, redis

# Where workers find what is theirs together.
FOLDER = "TESTS_FOLDER"
# In the Redis of the run: Celery's databases of xdist's workers, `gw0` and so on.
FIRST_CELERY_DATABASE = 512
_running = ExitStack()


def _start() -> None:
    folder = Path(_running.enter_context(tempfile.TemporaryDirectory(prefix="pw-")))
    os.environ[FOLDER] = str(folder)
    os.environ["POISONWEB_VAR"] = str(folder / "var")
    os.environ["POISONWEB_SECRET_KEY"] = "for tests only"
    os.environ["POISONWEB_LOOPBACK_BROKERS"] = "1"
    os.environ["DATABASE_URL"] = _running.enter_context(
        postgres.temporary(folder / "postgres")
    )
    broker = _running.enter_context(redis.temporary(folder / "redis"))
    os.environ["CELERY_BROKER_URL"] = broker
    # Beside Celery's database, and those of the workers of xdist.
    os.environ["POISONWEB_REDIS_URL"] = broker.removesuffix("/0") + "/15"


def _use_own_celery_queue(worker: str) -> None:
    server = os.environ["CELERY_BROKER_URL"].rsplit("/", 1)[0]
    number = FIRST_CELERY_DATABASE + int(worker.removeprefix("gw"))
    os.environ["CELERY_BROKER_URL"] = f"{server}/{number}"


if "DATABASE_URL" not in os.environ:
    _start()
elif FOLDER in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
    _use_own_celery_queue(os.environ["PYTEST_XDIST_WORKER"])

# Otherwise each of our many processes would compile all modules that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    _running.close()
