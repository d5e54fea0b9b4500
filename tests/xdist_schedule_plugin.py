"""A pytest plugin: who shares a server shares a worker, and the longest begin first.

xdist's own order begins with the files of many tests, and leaves one worker alone at
the end with a file of one long test. It also kills a worker ten seconds after its last
test, which then removes none of its temporary files: on a busy machine that is early.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from xdist.workermanage import NodeManager

from tests import machine_requirements

# Fixtures of a whole session or file, each worth half a minute: the product, Spark, the
# sample's past.
SHARED = ("product", "spark", "story")
# Servers worth as much, of which one is enough for a run.
SERVERS = ("rabbitmq", "azurite", "moto", "zookeeper")
LONGEST_FIRST = (
    *SERVERS,
    *("product", "test_celery_worker_kills", "story", "test_killed_nightly_report"),
    *("spark", "test_setup", "test_reports_equal_sample_ledger"),
    *("test_var_of_other_version", "test_product_start_privacy_and_stop"),
    *("test_consumer_killing_messages", "test_late_events"),
    *("test_upgrade", "test_released_names", "test_single_sign_on"),
)
BY_FILE = ("acceptance", "browser", "spark", "together")
# The last of those who share: one waits for a night that is made meanwhile, and the
# others stop and kill what they share.
AT_LAST = (
    "test_first_reports_and_readme_screenshot",
    "test_decisions_while_redis_hangs",
    "test_product_start_privacy_and_stop",
)

# In seconds.
WORKERS_END_WITHIN = 120


def pytest_configure() -> None:
    NodeManager.EXIT_TIMEOUT = WORKERS_END_WITHIN


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (_place(_group(item)), _lateness(item.path.stem)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Name the groups where xdist's scheduler looks for them: behind the tests' names.

    The mark `xdist_group` would do nothing: xdist 3.8 makes this name of it in a place
    that pytest 9.2 no longer reads. The names are taken back at once: what is random in
    a test comes from its name, and shall be the same when it runs alone.
    """
    if not getattr(session.config.option, "loadgroup", False):
        return (yield)
    names = [item._id for item in session.items]
    for item in session.items:
        if group := _group(item):
            item._id = type(item._id).parse(f"{item.nodeid}@{group}")
    try:
        return (yield)
    finally:
        for item, name in zip(session.items, names, strict=True):
            item._id = name


def _group(item: pytest.Item) -> str:
    """Name whom it shares a worker with; "" where it may run on any."""
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name in SHARED if name in fixtures]
    shared += [name for name in machine_requirements.of(item) if name in SERVERS]
    by_file = any(item.get_closest_marker(mark) for mark in BY_FILE)
    return next(iter(shared), item.path.stem if by_file else "")


def _lateness(file: str) -> int:
    return 1 + AT_LAST.index(file) if file in AT_LAST else 0


def _place(group: str) -> int:
    return LONGEST_FIRST.index(group) if group in LONGEST_FIRST else len(LONGEST_FIRST)
