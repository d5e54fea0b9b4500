"""Count what a preview shows of its items, once, some thousands in each statement.

No statement takes long, however many items there are: a preview of a million is counted
by the worker that takes them.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from apps.core.queryset_sql import read_by_index
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.poison.states import DISPLAY_STATES, PoisonState
from apps.triage.models import Item, Operation
from apps.triage.preview_breakdown import MOST_TOPICS, ItemBreakdown, Largest, Shares
from apps.triage.services import (
    redrive_to_other_queue_count,
    reserved_header_counts_for_preview,
)

AT_ONCE = 20_000
# Headers are in the bodies, which are much to read: so long for all items.
LEAST_SECONDS = 0.5
MOST_SECONDS = 10.0
SECONDS_AN_ITEM = 0.0001
MOST_SAMPLES = 3
AGES = (
    ("under an hour", timedelta(hours=1)),
    ("under a day", timedelta(days=1)),
    ("under a week", timedelta(days=7)),
    ("a week and more", timedelta.max),
)

_ACTED_ON = """
FROM triage_selected_item item
WHERE item.operation_id = %(operation)s
  AND item.number >= %(first)s AND item.number < %(end)s
  AND NOT EXISTS (
      SELECT FROM triage_skipped_item
      WHERE operation_id = item.operation_id AND number = item.number)
"""

# OFFSET 0 makes Postgres look up each poison, whatever it knows of the tables.
_COUNT = f"""
SELECT poison.topic_id, poison.consumer_group, poison.state, poison.problem_id,
       CASE WHEN poison.last_failed_at > %(age0)s THEN 0
            WHEN poison.last_failed_at > %(age1)s THEN 1
            WHEN poison.last_failed_at > %(age2)s THEN 2 ELSE 3 END,
       count(*), min(item.number)
FROM (SELECT number, poison_id {_ACTED_ON} OFFSET 0) item
JOIN poison_poison poison ON poison.id = item.poison_id
GROUP BY 1, 2, 3, 4, 5
"""  # noqa: S608 - made of our own names

_FIRST = f"SELECT poison_id {_ACTED_ON} ORDER BY number LIMIT %(most)s"

_SKIPPED = """
SELECT reason, count(*) FROM triage_skipped_item
WHERE operation_id = %(operation)s AND number >= %(first)s AND number < %(end)s
GROUP BY 1
"""


def count(operation: Operation, *, now: datetime) -> ItemBreakdown:
    """Count a preview's messages by topic, consumer, state, age and more.

    Returns the breakdown. All the preview's items are inserted.
    """
    counting = _Counting(operation, now=now)
    for first in range(0, operation.total, AT_ONCE):
        counting.add(first, min(first + AT_ONCE, operation.total))
    return counting.result()


class _Counting:
    """The counts of the items so far."""

    def __init__(self, operation: Operation, *, now: datetime) -> None:
        self.operation = operation
        self.ages = {f"age{i}": now - age for i, (_, age) in enumerate(AGES[:-1])}
        self.skipped = Counter[str]()
        self.topics = Counter[int]()
        self.consumers = Counter[str]()
        self.states = Counter[str]()
        self.by_age = Counter[str]()
        self.problems = Counter[int]()
        self.first_of_problem: dict[int, int] = {}
        self.first: list[int] = []
        self.left_out: Counter[str] | None = Counter()
        self.headers_until = time.monotonic() + min(
            MOST_SECONDS, LEAST_SECONDS + SECONDS_AN_ITEM * operation.total
        )

    def add(self, first: int, end: int) -> None:
        """Add items from number `first` to before `end` to a preview's breakdown."""
        values: dict[str, Any] = {
            **self.ages,
            "operation": self.operation.pk,
            "first": first,
            "end": end,
            "most": redrive_to_other_queue_count.MOST_READ - len(self.first),
        }
        with connection.cursor() as cursor:
            read_by_index()
            cursor.execute(_SKIPPED, values)
            self.skipped.update(dict(cursor.fetchall()))
            cursor.execute(_COUNT, values)
            rows = cursor.fetchall()
            if values["most"]:
                cursor.execute(_FIRST, values)
                self.first += [poison for (poison,) in cursor.fetchall()]
        for topic, consumer, state, problem, age, number, place in rows:
            self.topics[topic] += number
            self.consumers[consumer] += number
            self.states[DISPLAY_STATES[PoisonState(state)].value] += number
            self.by_age[AGES[age][0]] += number
            self.problems[problem] += number
            earlier = self.first_of_problem.setdefault(problem, place)
            self.first_of_problem[problem] = min(earlier, place)
        self._add_left_out({topic for topic, *_ in rows}, first, end)

    def _add_left_out(self, topics: set[int], first: int, end: int) -> None:
        """Count the headers that messages lose, if there is time for it."""
        seconds = self.headers_until - time.monotonic()
        if self.left_out is None:
            return
        if seconds <= 0:
            self.left_out = None
            return

        def count_some() -> Counter[str]:
            return reserved_header_counts_for_preview.count_left_out(
                self.operation, topics=topics, first=first, end=end
            )

        numbers = unless_slow(count_some, within_ms=max(1, round(seconds * 1_000)))
        if isinstance(numbers, TooSlow):
            self.left_out = None
        else:
            self.left_out.update(numbers)

    def result(self) -> ItemBreakdown:
        """Return the breakdown of all the preview's items that were added."""
        titles = [title for title, _ in AGES]
        ages = sorted(self.by_age.items(), key=lambda pair: titles.index(pair[0]))
        too_many = len(self.topics) > MOST_TOPICS
        return ItemBreakdown(
            skipped=Largest.of(self.skipped),
            topics=Largest.of(
                Counter({str(topic): n for topic, n in self.topics.items()})
            ),
            consumers=Largest.of(self.consumers),
            states=Largest.of(self.states),
            ages=Largest(values=tuple(ages)),
            topic_ids=None if too_many else tuple(sorted(self.topics)),
            first=tuple(self.first),
            samples=self._samples(),
            left_out=self._left_out(),
        )

    def _samples(self) -> tuple[int, ...]:
        """Return a message of each of the largest problems, else the first ones."""
        largest = [problem for problem, _ in self.problems.most_common(MOST_SAMPLES)]
        numbers = [self.first_of_problem[problem] for problem in largest]
        items = Item.objects.filter(operation=self.operation, number__in=numbers)
        poisons = dict(items.values_list("number", "poison_id"))
        different = [poisons[number] for number in numbers]
        return tuple(dict.fromkeys([*different, *self.first]))[:MOST_SAMPLES]

    def _left_out(self) -> Shares | None:
        return None if self.left_out is None else Largest.of(self.left_out).values
