"""Querysets of poisons, problems and skips."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Self

from django.db import connection, models
from django.db.models import Exists, F, Func, IntegerField, OuterRef, Q, Sum
from django.db.models.expressions import RawSQL

from apps.brokers import topic_names_to_id_filters
from apps.poison.query_language import Query
from apps.poison.states import (
    COUNTED,
    PoisonState,
    WindowState,
    silent_before,
)

if TYPE_CHECKING:
    from apps.poison.models import Body, ItemWindow, Poison, Problem, Skip, WaitingSkip

# In bytes, as they are stored.
LARGEST_HEADERS = 64 * 1024


class PoisonQuerySet(models.QuerySet["Poison"]):
    def open(self) -> Self:
        """Keep poisons that wait for a decision."""
        return self.filter(state=PoisonState.OPEN)

    def given_back(self) -> Self:
        """Keep poisons that were given back to their dead-letter queue."""
        return self.filter(state=PoisonState.MOVED, moved_to=F("topic"))

    def matching(self, query: Query) -> Self:
        """Keep poisons that match the query; its topics are looked up now."""
        return self.filter(query.where())

    def on_topics(self, patterns: Iterable[str]) -> Self:
        """Keep poisons of these topics, given by name or by pattern with `*`."""
        return self.filter(topic_names_to_id_filters.matching(patterns))

    def captured_after(self, snapshot: str) -> Self:
        """Keep poisons whose capture this snapshot of Postgres does not see yet."""
        visible: RawSQL = RawSQL(
            "pg_visible_in_snapshot(poison_poison.captured_xid, %s::pg_snapshot)",
            [snapshot],
        )
        return self.annotate(was_visible=visible).filter(was_visible=False)

    def recent_first(self) -> Self:
        """Order poisons by their last failure, the latest first."""
        return self.order_by("-last_failed_at", "-id")


class BodyQuerySet(models.QuerySet["Body"]):
    def with_usual_headers(self) -> Self:
        """Leave out bodies whose headers are too large to read many of them."""
        size = Func(
            F("headers"), function="pg_column_size", output_field=IntegerField()
        )
        return self.alias(headers_size=size).filter(headers_size__lte=LARGEST_HEADERS)


class ProblemQuerySet(models.QuerySet["Problem"]):
    def on_topics(self, patterns: Iterable[str]) -> Self:
        """Keep problems of these topics, given by name or by pattern with `*`."""
        return self.filter(topic_names_to_id_filters.matching(patterns))

    def with_poisons(self, poisons: PoisonQuerySet) -> Self:
        """Keep the problems that have at least one of these poisons."""
        return self.filter(Exists(poisons.filter(problem=OuterRef("pk")).order_by()))

    def recent_first(self) -> Self:
        """Order problems by their last failure, the latest first."""
        return self.order_by("-last_seen", "-id")


class SkipQuerySet(models.QuerySet["Skip"]):
    def active(self) -> Self:
        """Keep skips that have not been ended."""
        return self.filter(removed_revision=None)

    def in_force(self, now: datetime) -> Self:
        """Keep skips that consumers apply now; an expired one may not be ended yet."""
        in_force = self.active().filter(is_suspected=False)
        return in_force.filter(Q(expires_at=None) | Q(expires_at__gt=now))

    def for_group(self, consumer_group: str | None) -> Self:
        """Keep skips for this group; None is every group."""
        if consumer_group is None:
            return self
        return self.filter(Q(consumer_group=None) | Q(consumer_group=consumer_group))

    def on_topics(self, patterns: Iterable[str]) -> Self:
        """Keep skips of these topics, given by name or by pattern with `*`."""
        return self.filter(topic_names_to_id_filters.matching(patterns))

    def matched_like(self, *, topic: int, kind: str, digest: bytes) -> Self:
        """Keep skips with the value that has this SHA-256."""
        return self.filter(topic=topic, kind=kind, digest=digest)

    def recent_first(self) -> Self:
        """Order skips by id, the newest first."""
        return self.order_by("-id")


class WaitingSkipQuerySet(models.QuerySet["WaitingSkip"]):
    def killers_first(self) -> Self:
        """Order failures that wait for room on skip lists: crashes and hangs first.

        Of equal ones, the one that has waited longest is first.
        """
        return self.order_by("-is_killer", "id")


# By hand: pages ask for it, and Django would take longer to write it than Postgres.
_COUNTS = f"""
SELECT operation, {", ".join(f"sum({name})::bigint" for name in COUNTED)}
FROM poison_window WHERE operation = ANY(%s::bigint[]) GROUP BY 1
"""  # noqa: S608 - made of our own names


class WindowQuerySet(models.QuerySet["ItemWindow"]):
    def unfinished(self) -> Self:
        """Keep an operation's windows of which some item may still be sent."""
        return self.exclude(state=WindowState.DONE)

    def counts_of(self, operations: Iterable[int]) -> dict[int, dict[str, int]]:
        """Sum the counts of items over each operation's windows.

        Items that wait have none.
        """
        counts = {pk: dict.fromkeys(COUNTED, 0) for pk in operations}
        with connection.cursor() as cursor:
            cursor.execute(_COUNTS, [list(counts)])
            for operation, *numbers in cursor.fetchall():
                counts[operation] = dict(zip(COUNTED, numbers, strict=True))
        return counts

    def silent(self, now: datetime, *, is_over: bool = False) -> int:
        """Count the items of which no answer came for too long.

        `is_over`: their operation ended before that time, and will not find out what
        was sent. So those that may have been sent count, too. `listed_items` lists the
        same ones.
        """
        before = silent_before(now)
        if is_over:
            # What a killed run claimed first was marked by none.
            silent = self.exclude(marked_at__gte=before)
            number = Sum(F("sent") + F("unknown"))
        else:
            silent, number = self.filter(marked_at__lt=before), Sum("sent")
        return silent.aggregate(number=number)["number"] or 0
