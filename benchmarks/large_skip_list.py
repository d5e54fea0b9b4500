"""The cost of 100,000 skips: to send, to start with, and in memory.

Targets: a consumer's start takes at most 2.5 x `json.loads` of the list as 9a46585 sent
it, in processor time of fresh processes in turn; its resident memory grows by at most
40 MB, and by 80 while it loads; 20 consumers that start together all start within their
timeout of 30 s. The server spends less on the list than on the former JSON.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import urllib3

from benchmarks._benchmark_harness import (
    ROUNDS,
    api_key,
    product,
    resident_megabytes,
    seconds,
    web,
)

SKIPS = 100_000
PROCESSES = 20
RENDERED = 20
TOPIC, GROUP = "orders", "billing"
MEGABYTE = 1_000_000

# As capture adds them: each skip for another message, at another revision.
_FILL = """
INSERT INTO poison_skip (topic_id, consumer_group, kind, value, reason, by,
    is_automatic, is_suspected, applied, at, expires_at, revision, because, removed_by,
    removed_reason)
SELECT %(topic)s, 'billing', 'bookmark',
    convert_to((1763640000000 + n * 37) || '-0', 'UTF8'), 'exhausted: KeyError',
    'system:capture', true, false, 0, now() - n * interval '1.234567 seconds',
    now() + interval '30 days' - n * interval '1.234567 seconds', n, '', '', ''
FROM generate_series(1, %(number)s) n
"""


def fill(number: int) -> None:
    """Add this many skips to the skip list of the topic, by SQL."""
    from django.db import connection

    from apps.brokers.services.topics_and_routing_publisher import topics_named
    from apps.poison import skip_list_revisions

    topic = topics_named(names=[TOPIC])[TOPIC]
    with connection.cursor() as cursor:
        cursor.execute(_FILL, {"topic": topic.pk, "number": number})
        skip_list_revisions.lock_lists([topic.pk])
        cursor.execute("UPDATE poison_skip_list SET revision = %s", [number])
        cursor.execute("ANALYZE poison_skip")


def sending() -> None:
    """Print the processor time of making a skip list's text, as lines and as JSON."""
    from apps.api import skip_list_cache

    render = skip_list_cache._gzipped_lines  # noqa: SLF001
    lines = timed(partial(render, TOPIC, GROUP), RENDERED)
    whole = timed(partial(skip_list_cache._json, TOPIC, GROUP), ROUNDS)  # noqa: SLF001
    middle, slowest = statistics.median(lines), max(lines)
    before = statistics.median(whole)
    print(f"a list of {SKIPS:,} in lines: p50 {middle:.2f} s, p99 {slowest:.2f} s of a")
    print(f"  processor, as JSON: {before:.2f} s, ratio {middle / before:.2f}")


def timed(make: Callable[[], object], times: int) -> list[float]:
    """Make a skip list's text some times; return the processor time of each."""
    return [seconds(make, clock=time.process_time) for _ in range(times)]


def old_form(url: str, key: str, file: Path) -> None:
    """Write the skip list as the server of 9a46585 sent it, without suspects."""
    answer = urllib3.request(
        "GET",
        f"{url}/api/v1/skips",
        fields={"topic": TOPIC, "consumer_group": GROUP},
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    ).json()
    del answer["suspects"]
    file.write_text(json.dumps(answer))
    print(f"the list of {SKIPS:,} as JSON: {file.stat().st_size / MEGABYTE:.1f} MB")


# In a process of its own


def consume(url: str) -> dict[str, float]:
    """Start a guard with a large skip list; return its processor time and memory."""
    from poisonguard import Guard

    with TemporaryDirectory() as folder:
        guard = Guard(
            topic=TOPIC,
            consumer_group=GROUP,
            url=url,
            api_key=os.environ["BENCH_KEY"],
            journal=folder,
        )
        before = resident_megabytes()
        began, at = time.process_time(), time.perf_counter()
        guard.start()
        took = time.process_time() - began
        waited = time.perf_counter() - at
        after, peak = resident_megabytes(), resident_megabytes("VmHWM")
        number = len(guard.skips)
        guard.close(timeout=0)
    if number != SKIPS:
        raise AssertionError(f"{number} skips")
    return {"cpu": took, "s": waited, "rss": after - before, "peak": peak - before}


def parse(file: str) -> dict[str, float]:
    """Parse the old form of a skip list; return the processor time."""
    text = Path(file).read_text()
    return {"cpu": seconds(lambda: json.loads(text), clock=time.process_time)}


ROLES = {"consume": consume, "parse": parse}


def run_apart(role: str, what: str, key: str) -> dict[str, Any]:
    """Run a role of the benchmark in a new process; return its JSON result."""
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.large_skip_list", role, what],
        env={**os.environ, "BENCH_KEY": key},
        capture_output=True,
        check=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def starting(url: str, key: str, file: Path) -> None:
    """Print what a guard's start with a large skip list costs, against parsing it."""
    rounds = [
        (run_apart("consume", url, key), run_apart("parse", str(file), key))
        for _ in range(ROUNDS)
    ]
    took = statistics.median(ours["cpu"] for ours, _ in rounds)
    parsed = statistics.median(theirs["cpu"] for _, theirs in rounds)
    rss = statistics.median(ours["rss"] for ours, _ in rounds)
    peak = statistics.median(ours["peak"] for ours, _ in rounds)
    print(f"start with {SKIPS:,} skips: {took:.2f} s of a processor", end=", ")
    print(f"json.loads of the old form: {parsed:.2f} s", end=", ")
    print(f"ratio {took / parsed:.2f} (target 2.5)")
    print(f"  memory: {rss:.1f} MB (target 40), {peak:.1f} MB at the peak (target 80)")


def at_once(url: str, key: str) -> None:
    """Print how long processes that start at the same time wait for the skip list."""
    waited = list[float]()

    def one() -> None:
        waited.append(run_apart("consume", url, key)["s"])

    threads = [threading.Thread(target=one) for _ in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slowest = max(waited, default=0.0)
    print(f"{len(waited)} of {PROCESSES} processes that start at once do", end=", ")
    print(f"the slowest in {slowest:.1f} s (target 30)")


def main() -> None:
    logging.disable()
    key = api_key()
    fill(SKIPS)
    sending()
    with web() as url, TemporaryDirectory() as folder:
        file = Path(folder) / "skips.json"
        at_once(url, key)
        old_form(url, key, file)
        starting(url, key, file)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(ROLES[sys.argv[1]](sys.argv[2])))
    else:
        with product():
            main()
