"""A pytest plugin: who shares a server shares a worker, and the longest begin first.

xdist's own order begins with the files of many tests, and leaves one worker alone at
the end with a file of one long test.
"""

from __future__ import annotations

import pytest

from tests import needs

# Fixtures of a whole session or file, each worth half a minute: the product, Spark, the
# sample's past.
SHARED = ("browser", "spark", "story")
# Servers worth as much, of which one is enough for a run.
SERVERS = ("rabbitmq", "azurite")
LONGEST_FIRST = (
    *SERVERS,
    *("browser", "test_night_kills", "spark", "test_setup"),
    *("test_history_ledger", "test_embedded", "test_night"),
)
SLOW = ("acceptance", "browser", "spark")
# It waits for a night that is being made: what the others do meanwhile costs nothing.
PATIENT = "test_first_hour"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    items.sort(key=lambda item: (_place(_group(item)), item.path.stem == PATIENT))
    if getattr(config.option, "loadgroup", False):
        for item in items:
            if group := _group(item):
                _share(item, group)


def _share(item: pytest.Item, group: str) -> None:
    """Name the group where xdist's scheduler looks for it, behind the test's name.

    The mark `xdist_group` would do nothing: xdist 3.8 makes this name of it in a place
    that pytest 9.2 no longer reads.
    """
    item._id = type(item._id).parse(f"{item.nodeid}@{group}")


def _group(item: pytest.Item) -> str:
    """Name whom it shares a worker with; "" where it may run on any."""
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name in SHARED if name in fixtures]
    shared += [name for name in needs.of(item) if name in SERVERS]
    slow = any(item.get_closest_marker(mark) for mark in SLOW)
    return next(iter(shared), item.path.stem if slow else "")


def _place(group: str) -> int:
    return LONGEST_FIRST.index(group) if group in LONGEST_FIRST else len(LONGEST_FIRST)
