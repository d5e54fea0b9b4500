"""Redrive from Postgres to Redis Streams, durable and confirmed, against bare XADDs.

Target: at least 0.4 of XADDs in pipelines of the same window, on the same server.
"""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime

from benchmarks._bench import compare, product

NUMBER = 5_000
WINDOW = 200


def main() -> None:
    import redis

    from apps.brokers import services as brokers
    from apps.brokers.services import RoutingPublisher
    from apps.capture import services
    from apps.capture.occurrence import from_report
    from apps.core import clock
    from apps.core.actor import Actor
    from apps.poison.query import Query
    from apps.team.rights import Principal, Scope
    from apps.triage.services import decision, running, selection
    from apps.triage.services.selection import Ask
    from apps.triage.states import Verb
    from poisonguard.contract import Cause, FailureReport

    url = os.environ["POISONWEB_REDIS_URL"]
    actor = Actor.system("bench")
    who = Principal(actor=actor, scopes=frozenset(Scope))
    now = datetime.now(UTC)
    broker = brokers.register_broker(
        name="redis", kind="redis_streams", url=url, actor=actor, now=now
    )
    topic = brokers.register_topic(
        name="orders",
        broker=broker,
        dead_letter_queue="orders-poison",
        policy={},
        actor=actor,
        now=now,
    )

    def poisons(group: str) -> None:
        reports = [
            FailureReport(
                report_id=uuid.uuid4(),
                topic="orders",
                consumer_group=group,
                client_name="billing-1",
                bookmark=str(uuid.uuid4()),
                body=os.urandom(1024),
                headers=((b"trace", b"1"),),
                cause=Cause.EXHAUSTED,
                attempts=1,
                failures=1,
                crashes=0,
                first_failed_at=now,
                failed_at=now,
            )
            for _ in range(NUMBER)
        ]
        made = [from_report(report, topic=topic, now=now) for report in reports]
        services.write(occurrences=made, now=now)

    def confirmed(group: str) -> int:
        ask = Ask(verb=Verb.REDRIVE, query=Query.parse(f"consumer:{group}"))
        seen = selection.preview(ask=ask, principal=who, now=clock.now())
        return decision.confirm(
            token=seen.token, reason="bench", principal=who, now=clock.now()
        ).pk

    def prepared(group: str) -> int:
        poisons(group)
        return confirmed(group)

    operations: list[int] = []

    def redrive() -> None:
        with RoutingPublisher() as publisher:
            running.run(
                operation_id=operations.pop(), publisher=publisher, clock=clock.now
            )

    body = os.urandom(1024)
    client = redis.Redis.from_url(url)

    def xadd() -> None:
        for _ in range(0, NUMBER, WINDOW):
            pipeline = client.pipeline(transaction=False)
            for _ in range(WINDOW):
                pipeline.xadd("bare", {"body": body, "trace": b"1"})
            pipeline.execute()

    operations += [prepared(f"group{turn}") for turn in range(6)]
    compare(
        "redrive",
        number=NUMBER,
        ours=redrive,
        baseline=xadd,
        named="pipelined XADD",
    )


if __name__ == "__main__":
    with product():
        main()
