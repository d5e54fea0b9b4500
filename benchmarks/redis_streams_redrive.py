"""Redrive from Postgres to Redis Streams, on a durable Postgres as `make run` has.

A redrive is timed from its confirmation to its end. The baseline is bare XADDs in
pipelines, on the same server; with a worktree of an earlier commit as argument, its
redrive is measured in turn, too, on servers of its own: there, the confirmation held
the messages, which a worker does now. Target: at least 2.5 times the commit 9a46585,
whose time for a message grows with their number.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

NUMBER = int(os.environ.get("NUMBER", "20000"))
WINDOW = 200
OURS, XADD, EARLIER = "redrive", "pipelined XADD", "redrive of before"


def serve() -> None:
    """Redrive or add messages as standard input asks; print the seconds taken."""
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from benchmarks import _redrives as redrives

    url = os.environ["POISONWEB_REDIS_URL"]
    topic = redrives.topic_on(kind="redis_streams", url=url, queue="orders")
    # The commit 9a46585 named it `confirmed`, and the module that confirms `decision`.
    queue = getattr(redrives, "confirmed", None) or redrives.queue_redrive
    modules = vars(redrives)
    confirming = modules.get("decision") or modules["confirm_and_undo"]
    confirm = confirming.confirm
    began = list[float]()

    def confirm_timed(**values: Any) -> Any:
        began.append(time.perf_counter())
        return confirm(**values)

    confirming.confirm = confirm_timed
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == OURS:
            operation_id = queue(topic, number=NUMBER)
            _redrive(redrives, operation_id)
            start = began.pop()
        else:
            start = time.perf_counter()
            _add_bare_messages(url)
        print(time.perf_counter() - start, flush=True)


def _redrive(redrives: Any, operation_id: int) -> None:
    """Carry out a redrive operation of the benchmark completely, as a worker does."""
    this = redrives.Operation.objects.filter(pk=operation_id)
    with redrives.RoutingPublisher() as publisher:
        while not this.filter(state="done").exists():
            redrives.running.run(
                operation_id=operation_id,
                publisher=publisher,
                clock=redrives.clock.now,
            )


def _add_bare_messages(url: str) -> None:
    """Add as many messages to a Redis stream as fast as pipelines can."""
    import redis

    body = os.urandom(1024)
    with redis.Redis.from_url(url) as client:
        for _ in range(0, NUMBER, WINDOW):
            pipeline = client.pipeline(transaction=False)
            for _ in range(WINDOW):
                pipeline.xadd("bare", {"body": body, "trace": b"1"})
            pipeline.execute()


def main(earlier: Path | None) -> None:
    """Time redrives and bare additions in turn; print the ratios of the medians."""
    # `serve` runs on an earlier tree, too, which has no such module.
    from benchmarks._median_times_by_source_tree import median_seconds

    before = (EARLIER, earlier) if earlier else None
    medians = median_seconds(__file__, (OURS, XADD), earlier=before)
    for name, median in medians.items():
        print(f"{name}: {NUMBER / median:,.0f}/s")
    for name in medians.keys() - {OURS}:
        print(f"ratio {medians[name] / medians[OURS]:.2f} of redrive to {name}")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main(Path(sys.argv[1]).resolve() if sys.argv[1:] else None)
