"""Drop many messages, and restore them, on a durable Postgres as `make run` has.

Ours is timed from the confirmation to the end of the operation, and the undo from its
request. The baseline is one plain UPDATE of the same rows to the same state. Target: at
least 0.5 of the UPDATE, for a million messages (NUMBER=1000000).
"""

from __future__ import annotations

import os
import statistics
import uuid
from collections.abc import Callable
from functools import partial

from benchmarks._benchmark_harness import product, seconds

NUMBER = int(os.environ.get("NUMBER", "100000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))

DROP = "UPDATE poison_poison SET state = 'dropped', dropped_at = now()"
RESTORE = "UPDATE poison_poison SET state = 'open', dropped_at = NULL"


def main() -> None:
    """Time drops, restores and plain UPDATEs in turn; print ratios of the medians."""
    from apps.brokers.services.topics_and_routing_publisher import topics_named
    from apps.core import clock
    from apps.triage.operation_states import Verb
    from apps.triage.services import confirm_and_undo
    from benchmarks import _redrives as redrives

    topic = topics_named(names=["orders"])["orders"]
    group = uuid.uuid4().hex
    redrives.store_poisons(topic, group=group, number=NUMBER)
    execute("VACUUM ANALYZE")
    times: dict[str, list[float]] = {"drop": [], "restore": [], DROP: [], RESTORE: []}

    for _ in range(ROUNDS):
        token = redrives.preview(Verb.DROP, group=group)
        dropped = list[int]()

        def drop(token: uuid.UUID = token, dropped: list[int] = dropped) -> None:
            operation = confirm_and_undo.confirm(
                token=token,
                reason="bench",
                principal=redrives.PRINCIPAL,
                now=clock.now(),
            )
            redrives.run_to_its_end(operation.pk)
            dropped.append(operation.pk)

        def restore(dropped: list[int] = dropped) -> None:
            operation = confirm_and_undo.undo(
                operation_id=dropped[0], principal=redrives.PRINCIPAL, now=clock.now()
            )
            redrives.run_to_its_end(operation.pk)

        works: dict[str, Callable[[], object]] = {
            "drop": drop,
            "restore": restore,
            DROP: partial(execute, DROP),
            RESTORE: partial(execute, RESTORE),
        }
        for name, work in works.items():
            times[name].append(seconds(work))
            # What one leaves behind must not slow down the next.
            execute("VACUUM poison_poison")
    medians = {name: statistics.median(each) for name, each in times.items()}
    for ours, plain in (("drop", DROP), ("restore", RESTORE)):
        print(
            f"{ours}: {NUMBER / medians[ours]:,.0f}/s, "
            f"plain UPDATE: {NUMBER / medians[plain]:,.0f}/s, "
            f"ratio {medians[plain] / medians[ours]:.2f}"
        )


def execute(statement: str) -> None:
    """Execute a benchmark's SQL statement in a transaction of its own."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)


if __name__ == "__main__":
    with product(durable=True):
        main()
