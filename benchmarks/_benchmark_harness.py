"""Shared by benchmarks: temporary servers, and comparisons with a ratio as the result.

Only a ratio of two figures of the same run has a meaning: the program and its baseline
take turns, and the medians are compared.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from poisonweb import env
from poisonweb.embedded import (
    postgres,
    process_control,
    process_plan,
    redis,
)
from poisonweb.embedded.free_ports import LOOPBACK, free_port
from poisonweb.embedded.running_servers_file import LOOPBACK_BROKERS

ROUNDS = 5


@contextmanager
def product(*, durable: bool = False) -> Iterator[None]:
    """Set up Django on a temporary Postgres and Redis; durable as `make run` has it."""
    with servers(durable=durable) as environ:
        os.environ |= environ
        set_up()
        from django.db import connection

        yield
        connection.close()


@contextmanager
def servers(*, durable: bool) -> Iterator[dict[str, str]]:
    """Run a temporary Postgres and Redis; yield the environment for our processes."""
    with (
        tempfile.TemporaryDirectory(prefix="pw-bench-") as folder,
        _postgres(Path(folder) / "postgres", durable=durable) as database_url,
        redis.temporary(Path(folder) / "redis") as broker_url,
    ):
        yield {
            "DATABASE_URL": database_url,
            "CELERY_BROKER_URL": broker_url,
            # Beside Celery's database, where no message broker may be.
            "POISONWEB_REDIS_URL": broker_url.removesuffix("/0") + "/1",
            "POISONWEB_VAR": folder,
            "POISONWEB_SECRET_KEY": "bench",
            **LOOPBACK_BROKERS,
            "DJANGO_SETTINGS_MODULE": "poisonweb.settings",
        }


@contextmanager
def _postgres(folder: Path, *, durable: bool) -> Iterator[str]:
    """Run a temporary Postgres in the folder; yield its URL."""
    if not durable:
        with postgres.temporary(folder) as database_url:
            yield database_url
        return
    postgres.prepare(folder)
    port = free_port()
    with process_control.running(postgres.program(folder, port=port), folder=folder):
        yield postgres.url(folder, port=port)


def set_up() -> None:
    """Set up Django on the Postgres and Redis that the environment names."""
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


@contextmanager
def web(settings: str = "poisonweb.settings") -> Iterator[str]:
    """Run an installation's web server on the servers of `product`; yield its URL.

    It runs in a process of its own, so that a client's cost does not slow it down.
    """
    port = free_port()
    environ = {
        **os.environ,
        "PYTHONPATH": str(env.ROOT),
        "DJANGO_SETTINGS_MODULE": settings,
    }
    programs = process_plan.make(
        env.load(environ), port=port, environ=environ
    ).processes
    server = next(program for program in programs if program.name == "web")
    with process_control.running(server, folder=Path(os.environ["POISONWEB_VAR"])):
        yield f"http://{LOOPBACK}:{port}"


def api_key() -> str:
    """Create the API key of a benchmark's consumer.

    It may report, follow skips, settle positions and call endpoints.
    """
    from apps.core import clock
    from apps.core.actor import Actor
    from apps.team import services as team
    from apps.team.rights import Scope

    new_key = team.create_api_key(
        name="bench",
        scopes=[
            Scope.CAPTURE_WRITE,
            Scope.SKIPS_READ,
            Scope.SKIPS_WRITE,
            Scope.POSITIONS_READ,
            Scope.POSITIONS_WRITE,
            Scope.GATEWAY_CALL,
        ],
        actor=Actor.system("bench"),
        now=clock.now(),
    )
    return new_key.secret


def seconds(
    work: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Run a function once; return how many seconds it took by the clock."""
    began = clock()
    work()
    return clock() - began


def resident_megabytes(name: str = "VmRSS") -> float:
    """Return the resident memory of this process, or its peak (`VmHWM`), in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(name)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile of the values."""
    return statistics.quantiles(values, n=100)[-1]


def compare(
    title: str,
    *,
    number: int,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    named: str,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Time our work and the baseline in turn; print their rates, return their ratio.

    The ratio is our rate by the baseline's. Time work that only computes by
    `time.thread_time`, so that other processes on a busy machine do not count.
    """
    ours(), baseline()  # once each to warm up
    pairs = [
        (seconds(ours, clock=clock), seconds(baseline, clock=clock))
        for _ in range(ROUNDS)
    ]
    mine = number / statistics.median(a for a, _ in pairs)
    theirs = number / statistics.median(b for _, b in pairs)
    print(f"{title}: {mine:,.0f}/s, {named}: {theirs:,.0f}/s", end=", ")
    print(f"ratio {mine / theirs:.2f}")
    return mine / theirs
