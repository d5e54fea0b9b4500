"""Enforce that a dead-letter queue belongs to one topic of its broker.

Two lanes on one queue would each capture a part of it under the wrong topic. Topics
that shared a queue before this rule go on: `Topic.shares_queue` marks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import IntegrityError, transaction

from apps.brokers.models import ONE_READER, Broker, Topic
from apps.core.errors import Invalid
from apps.team.rights import Principal


def reader_of_queue(*, broker: Broker, queue: str, besides: str) -> Topic | None:
    """Find a topic other than `besides` that reads this dead-letter queue, or None."""
    if not queue:
        return None
    readers = broker.topics.filter(dead_letter_queue=queue).exclude(name=besides)
    return readers.order_by("pk").first()


@contextmanager
def one_reader(
    *, broker: Broker | None, queue: str, topic: str, principal: Principal | None = None
) -> Iterator[None]:
    """Run a block that assigns a dead-letter queue to a topic.

    Raises Invalid if another topic reads the queue. The error does not name a topic
    that the `principal` does not see.
    """
    if broker is None:
        yield
        return
    _refuse_other_reader(broker, queue, topic, principal)
    try:
        with transaction.atomic():
            yield
    except IntegrityError as conflict:
        if ONE_READER not in str(conflict):
            raise
        # Another transaction wrote it between our check and our write.
        _refuse_other_reader(broker, queue, topic, principal)
        raise


def _refuse_other_reader(
    broker: Broker, queue: str, topic: str, principal: Principal | None
) -> None:
    """Raise Invalid if another topic reads the dead-letter queue already."""
    other = reader_of_queue(broker=broker, queue=queue, besides=topic)
    if other is None:
        return
    is_hidden = principal is not None and not principal.sees(other.name)
    reader = "another topic" if is_hidden else f"the topic {other.name}"
    raise Invalid(
        "dead_letter_queue",
        f"{reader} reads {queue} already: a dead-letter queue belongs to one topic. "
        "Name another queue, or take it from that topic first.",
    )
