"""Find messages whose headers name another queue than their topic.

A dead-letter queue that several consumers share belongs to one topic here, and a
requeue goes to that topic. Poisonweb never sends to a queue that a header names; it
only shows it to people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import F, Func, IntegerField

from apps.brokers import failure_headers
from apps.core.text_cleaning import storable
from apps.poison.models import Body

LONGEST = 200
# Larger headers do not describe a failure, and would cost a page too much.
LARGEST_HEADERS = 64 * 1024


class MisroutedCount(NamedTuple):
    """The number of messages of a topic whose headers name another queue."""

    origin: str
    topic: str
    number: int


def of(poison: int, *, topic: str) -> str:
    """Return the queue in which a message failed, by its headers.

    It is "" if they name none, or that of its topic.
    """
    return next((count.origin for count in count_by_queue([(poison, topic)])), "")


def count_by_queue(poisons: Sequence[tuple[int, str]]) -> list[MisroutedCount]:
    """Count messages whose headers name another queue than their topic's.

    It takes pairs of a poison's id and its topic's native name, and returns how many
    there are by such queue and topic, the most first.
    """
    topics = dict(poisons)
    weight = Func(F("headers"), function="pg_column_size", output_field=IntegerField())
    bodies = Body.objects.annotate(weight=weight).filter(poison__in=topics)
    usual = bodies.filter(weight__lte=LARGEST_HEADERS)
    counted = Counter[tuple[str, str]]()
    for poison, headers in usual.values_list("poison_id", "headers"):
        parts = [bytes(part) for part in headers]
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        origin = failure_headers.read(pairs).origin
        if origin and not _is_same(origin, topics[poison]):
            counted[storable(origin, limit=LONGEST), topics[poison]] += 1
    return [MisroutedCount(*place, number) for place, number in counted.most_common()]


def _is_same(origin: str, topic: str) -> bool:
    """Tell whether a queue named in headers is the topic's.

    It may be written as `queue@host`, or behind a URL.
    """
    queue = origin.partition("?")[0].rpartition("/")[2].partition("@")[0]
    return topic in {origin, queue}
