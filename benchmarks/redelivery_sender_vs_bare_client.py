"""Deliveries that are all due at once, against the same HTTP client in a bare loop.

Both call the same back end, a process of its own that answers at once, with the same
number of calls at a time. The bare loop stores nothing. Postgres is durable here, as in
operation. The promise: the sender has at least half of the loop's rate. The processor
time of a call says the same on a machine that has other work.

Then how soon 1,000 begin that become due at one moment: within 3 seconds. Then what a
million deliveries that sleep cost: the processor time of the sender and of Postgres, in
percent of a core, beside the same with none: at most 1 %.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._benchmark_harness import product
from poisonweb import env
from poisonweb.embedded import process_control
from poisonweb.embedded.free_ports import free_port

if TYPE_CHECKING:
    from apps.redelivery.models import Endpoint

NUMBER = int(os.environ.get("DELIVERIES", "5000"))
SLEEPERS = int(os.environ.get("SLEEPERS", "1000000"))
CONCURRENCIES = (10, 100)
ROUNDS = 3
IDLE_SECONDS = 60.0
AT_ONCE = 1_000
DUE_IN_SECONDS = 5.0
BODY = b"<quote>IBM</quote>" * 10

_STORE = """
WITH new AS (
    INSERT INTO redelivery_delivery (id, endpoint_id, state, method, path, headers,
        size, caller, idempotency_key, is_repeatable, retry_count, attempts,
        accepted_at, due_at, last_wait, last_error, cause)
    SELECT gen_random_uuid(), %(endpoint)s, 'waiting', 'POST', '/ok',
        ARRAY['Content-Type', 'text/xml']::bytea[], %(size)s, 'bench', 'order', true,
        0, 0, %(now)s, %(due_at)s, 0, '', ''
    FROM generate_series(1, %(number)s)
    RETURNING id
)
INSERT INTO redelivery_delivery_body (delivery_id, content)
SELECT id, %(body)s FROM new
"""


def main() -> None:
    os.environ["POISONWEB_ENDPOINT_HOSTS"] = "127.0.0.1"
    with product(durable=True), back_end() as url, sender() as process:
        for concurrency in CONCURRENCIES:
            compare(url, concurrency, process)
        measure_due_at_once(url)
        measure_sleep(process)


@contextmanager
def back_end() -> Iterator[str]:
    port = free_port()
    command = (sys.executable, "-m", "tests.delivery_back_end", str(port))
    with subprocess.Popen(command, cwd=env.ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def sender() -> Iterator[subprocess.Popen[bytes]]:
    with (
        Path(os.environ["POISONWEB_VAR"], "sender.log").open("wb") as log,
        subprocess.Popen(
            (sys.executable, "manage.py", "sender"), cwd=env.ROOT, stderr=log
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def compare(url: str, concurrency: int, process: subprocess.Popen[bytes]) -> None:
    endpoint = make_endpoint(f"with-{concurrency}", url, concurrency)
    bare, ours = list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(ROUNDS):
        bare.append(bare_seconds(url, concurrency))
        before = processor_seconds(process)
        seconds = delivery_seconds(endpoint)
        ours.append((seconds, processor_seconds(process) - before))
    mine, theirs = median_rate(ours), median_rate(bare)
    print(
        f"{concurrency} calls at a time: {mine:,.0f} deliveries/s, the client in a bare"
        f" loop: {theirs:,.0f}/s, ratio {mine / theirs:.2f}"
    )
    both = (median_microseconds(each) for each in (ours, bare))
    print(
        "processor time: {:.0f} us with Postgres, in the loop {:.0f} us".format(*both)
    )


def median_rate(rounds: list[tuple[float, float]]) -> float:
    return NUMBER / statistics.median(seconds for seconds, _ in rounds)


def median_microseconds(rounds: list[tuple[float, float]]) -> float:
    return statistics.median(processor for _, processor in rounds) / NUMBER * 1e6


def bare_seconds(url: str, concurrency: int) -> tuple[float, float]:
    """Call a back end by a bare client in a process of its own, many times.

    Return the seconds of the calls, and their processor time.
    """
    command = (sys.executable, "-m", __spec__.name, url, str(concurrency))
    output = subprocess.run(command, cwd=env.ROOT, check=True, capture_output=True)
    seconds, processor = map(float, output.stdout.split())
    return seconds, processor


def make_endpoint(name: str, url: str, concurrency: int, **settings: Any) -> Endpoint:
    from apps.core import clock
    from apps.core.actor import Actor
    from apps.redelivery.endpoint_settings_dataclass import EndpointSettings
    from apps.redelivery.services.endpoints import create_endpoint
    from apps.team.rights import Principal, Scope

    return create_endpoint(
        name=name,
        settings=EndpointSettings(target=url, concurrency=concurrency, **settings),
        principal=Principal(actor=Actor("user:bench"), scopes=frozenset(Scope)),
        now=clock.now(),
    )


def store(endpoint: Endpoint, number: int, *, due_in: float) -> None:
    from django.db import connection

    from apps.core import clock

    now = clock.now()
    values: dict[str, Any] = {
        "endpoint": endpoint.pk,
        "number": number,
        "body": BODY,
        "size": len(BODY),
        "now": now,
        "due_at": now + timedelta(seconds=due_in),
    }
    with connection.cursor() as cursor:
        cursor.execute(_STORE, values)
        cursor.execute("VACUUM ANALYZE redelivery_delivery")


def delivery_seconds(endpoint: Endpoint) -> float:
    """Return the seconds in which the gateway's sender finishes stored deliveries.

    Store them while their endpoint is disabled, and time them once it is enabled.
    """
    from apps.redelivery.models import Delivery, Endpoint

    rows = Endpoint.objects.filter(pk=endpoint.pk)
    rows.update(is_enabled=False)
    time.sleep(2)
    store(endpoint, NUMBER, due_in=0)
    unfinished = Delivery.objects.filter(endpoint=endpoint, finished_at=None)
    rows.update(is_enabled=True)
    while not Delivery.objects.filter(endpoint=endpoint, state="trying").exists():
        time.sleep(0.002)
    began = time.perf_counter()
    while unfinished.exists():
        time.sleep(0.05)
    return time.perf_counter() - began


def measure_due_at_once(url: str) -> None:
    """Print when the last of many deliveries due at one moment begins."""
    from django.db.models import Max

    from apps.redelivery.models import Attempt, Delivery

    endpoint = make_endpoint("at-once", url, 10, breaker_failures=0)
    store(endpoint, AT_ONCE, due_in=DUE_IN_SECONDS)
    deliveries = Delivery.objects.filter(endpoint=endpoint)
    while deliveries.filter(finished_at=None).exists():
        time.sleep(0.1)
    attempts = Attempt.objects.filter(delivery__in=deliveries)
    last = attempts.aggregate(last=Max("begun_at"))["last"]
    first = deliveries.values_list("due_at", flat=True)[0]
    seconds = (last - first).total_seconds()
    print(f"{AT_ONCE:,} due at once: the last began after {seconds:.2f} s")


def measure_sleep(process: subprocess.Popen[bytes]) -> None:
    endpoint = make_endpoint("asleep", "http://127.0.0.1:9", 1)
    for number in (0, SLEEPERS):
        store(endpoint, number, due_in=86_400)
        time.sleep(3)
        before = processor_seconds(process)
        time.sleep(IDLE_SECONDS)
        share = (processor_seconds(process) - before) / IDLE_SECONDS
        print(f"{number:,} asleep cost {share:.2%} of a core")


def processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of the gateway's sender and its Postgres sessions."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%sender%'"
        )
        pids = [process.pid, *(pid for (pid,) in cursor.fetchall())]
    stats = [process_control.stat(pid) for pid in pids]
    ticks = sum(int(each[11]) + int(each[12]) for each in stats if each)
    return ticks / os.sysconf("SC_CLK_TCK")


async def time_http_client_calls(url: str, concurrency: int) -> tuple[float, float]:
    """Call a back end by our HTTP client; return wall and processor time.

    The requests are those of the deliveries: each has an id of its own.
    """
    from apps.redelivery.outbound.http_caller import EndpointRequest, HttpCaller
    from apps.redelivery.outbound.target_url import EndpointTarget

    target = EndpointTarget.parse(url)
    path = target.url_path(b"/ok")
    ids = iter([b"%032x" % number for number in range(NUMBER)])
    async with HttpCaller(connections_per_target=concurrency) as caller:

        async def work() -> None:
            for id_ in ids:
                headers = [
                    (b"Content-Type", b"text/xml"),
                    (b"x-poisonweb-hops", b"1"),
                    (b"Idempotency-Key", b"order"),
                    (b"x-poisonweb-delivery", id_),
                ]
                request = EndpointRequest(
                    method=b"POST",
                    target=target,
                    path=path,
                    headers=headers,
                    body=BODY,
                )
                async with caller.call(request, seconds=10) as answer:
                    await answer.read(2**16)

        began, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        return time.perf_counter() - began, time.process_time() - processor


if __name__ == "__main__":
    match sys.argv[1:]:
        case [url, concurrency]:
            import django

            django.setup()
            print(*asyncio.run(time_http_client_calls(url, int(concurrency))))
        case _:
            main()
