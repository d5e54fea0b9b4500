"""What benchmarks share: servers of their own, fair turns, and one ratio as the result.

A figure means something only beside another one of the same run: the program and its
baseline take turns, and the median of each counts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from poisonweb.embedded import postgres, redis

ROUNDS = 5


@contextmanager
def product() -> Iterator[None]:
    """Set Django up on a Postgres and a Redis that are thrown away afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="pw-bench-") as folder,
        postgres.temporary(Path(folder) / "postgres") as database_url,
        redis.temporary(Path(folder) / "redis") as broker_url,
    ):
        os.environ |= {
            "DATABASE_URL": database_url,
            "CELERY_BROKER_URL": broker_url,
            "POISONWEB_REDIS_URL": broker_url,
            "POISONWEB_VAR": folder,
            "POISONWEB_SECRET_KEY": "bench",
            "DJANGO_SETTINGS_MODULE": "poisonweb.settings",
        }
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        yield
        connection.close()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(
    title: str,
    *,
    number: int,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    named: str,
) -> float:
    """Run both in turn, print both rates, and give ours as a part of the baseline's."""
    ours(), baseline()  # once each to warm up
    pairs = [(seconds(ours), seconds(baseline)) for _ in range(ROUNDS)]
    mine = number / statistics.median(a for a, _ in pairs)
    theirs = number / statistics.median(b for _, b in pairs)
    print(f"{title}: {mine:,.0f}/s, {named}: {theirs:,.0f}/s", end=", ")
    print(f"ratio {mine / theirs:.2f}")
    return mine / theirs
