"""A topic goes again while nothing of it is on record, and a broker with all of its.

What a lane saw of a topic is at its broker still, and goes with it. All else that
refers to a topic is a record, and one that has any stays: tables to come are, too.

Locks are taken in this order: the broker, its topics, what a lane writes of them (it
holds the topic first), and the head of the trail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, models, transaction
from django.db.models import OuterRef, Subquery
from django.db.models.fields.reverse_related import ForeignObjectRel

from apps.audit import services as audit
from apps.audit.services import Action
from apps.bookmarks.models import BookmarkPosition
from apps.brokers import allow_list
from apps.brokers.models import Broker, Topic
from apps.brokers.querysets import TopicQuerySet
from apps.capture.models import (
    Counter,
    HeldDeadLetter,
    Lane,
    OversizeMessage,
    Sample,
)
from apps.core.errors import Absent, Refused
from apps.team.rights import Principal, Scope

MOST_NAMED = 10
# What a lane saw, or consumers left at the broker; and what the broker told a lane.
SEEN: set[type[models.Model]] = {
    Lane,
    Sample,
    HeldDeadLetter,
    OversizeMessage,
}
TOLD: set[type[models.Model]] = {BookmarkPosition, Counter}
# What a record is to people; siblings of this app are named, not imported.
WORDS: Mapping[str, str] = {
    "poison.Poison": "messages",
    "poison.Problem": "messages",
    "poison.Redrive": "messages",
    "capture.Delivery": "messages",
    "poison.Skip": "skips",
    "poison.SkipList": "skips",
    "poison.WaitingSkip": "skips",
    "bookmarks.BookmarkPosition": "positions",
    "triage.Operation": "operations",
    "reports.Rate": "reports",
    "capture.Counter": "counts of its consumers",
    "capture.Guard": "guards",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A topic that stays, and what is on record of it."""

    topic: Topic
    records: list[str]

    def __str__(self) -> str:
        return f"{self.topic.name} ({', '.join(self.records)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Which of some topics can go, and which have to stay."""

    going: list[Topic]
    kept: list[Kept]


class OnRecord(Refused):
    """Something is on record of topics that were to go."""

    def __init__(self, kept: Sequence[Kept]) -> None:
        named = "; ".join(str(each) for each in kept[:MOST_NAMED])
        more = len(kept) - MOST_NAMED
        super().__init__(
            f"Nothing was removed: {named}{f'; and {more} more' if more > 0 else ''} "
            f"{'has' if len(kept) == 1 else 'have'} something on record here, which "
            "stays. Pause a lane, and nothing is read from its topic any more."
        )


class Otherwise(Refused):
    """What would go is not what you looked at: look again. Nothing was removed."""


@transaction.atomic
def look(topics: TopicQuerySet) -> Look:
    """Tell which topics can go, and of which something is on record."""
    records = _records()
    asked = {flag: Subquery(_one_row(each)) for flag, each in records.items()}
    _ask_by_index()
    going, kept = [], []
    for topic in topics.annotate(**asked).order_by("name"):
        if words := _words(topic, records):
            kept.append(Kept(topic=topic, records=words))
        else:
            going.append(topic)
    return Look(going=going, kept=kept)


@transaction.atomic
def remove_broker(
    *,
    broker: Broker,
    agreed: Collection[int] | None = None,
    reason: str = "",
    principal: Principal,
    now: datetime,
) -> None:
    """Remove a broker with all of its topics; raises OnRecord where one has to stay.

    With `agreed`, the topics that somebody saw go, raises Otherwise where others would.
    """
    allow_list.require_all_topics(principal)
    locked = Broker.objects.select_for_update().filter(pk=broker.pk).first()
    if locked is None:
        raise Absent(f"There is no broker {broker.pk} here.")
    names = _remove(locked.topics.all(), agreed)
    locked.delete()
    audit.record(
        action=Action.BROKER_REMOVED,
        subject=f"broker:{locked.name}",
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail={"kind": locked.kind, "topics": names},
    )


@transaction.atomic
def remove_topics(
    *,
    topics: Collection[int],
    reason: str = "",
    principal: Principal,
    now: datetime,
) -> None:
    """Remove these topics, all or none: raises OnRecord where one has to stay."""
    principal.require(Scope.BROKERS_WRITE)
    if not topics:
        raise Otherwise
    visible = Topic.objects.matching(principal.topics)
    names = _remove(visible.filter(pk__in=topics), topics)
    audit.record(
        action=Action.TOPIC_REMOVED,
        subject=f"topic:{names[0]}" if len(names) == 1 else "topics",
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail={"topics": names},
    )


def _remove(topics: TopicQuerySet, agreed: Collection[int] | None) -> list[str]:
    """Delete the topics with what lanes saw of them; give their names."""
    # What others write of a topic they commit before this, or find it gone.
    found = list(topics.select_for_update().order_by("pk"))
    ids = [topic.pk for topic in found]
    if agreed is not None and set(ids) != set(agreed):
        raise Otherwise
    kept = look(Topic.objects.filter(pk__in=ids)).kept
    if kept:
        raise OnRecord(kept)
    Counter.objects.filter(topic__in=ids, source="broker").delete()
    Topic.objects.filter(pk__in=ids).delete()
    return sorted(topic.name for topic in found)


def _records() -> dict[str, ForeignObjectRel]:
    """List all that refers to topics and may be a record, also what has no name."""
    # Django's own way to all of them, hidden ones too (see django.db.models.deletion).
    everything = Topic._meta.get_fields(include_hidden=True)  # noqa: SLF001
    return {
        f"record_{place}": each
        for place, each in enumerate(everything)
        if isinstance(each, ForeignObjectRel) and each.related_model not in SEEN
    }


def _ask_by_index() -> None:
    """Look for each topic at the index of each table, until the transaction ends.

    Postgres expects that any topic has rows, and would read a whole table to find that
    this one has none.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")


def _one_row(relation: ForeignObjectRel) -> models.QuerySet[Any, Any]:
    model: type[models.Model] = relation.related_model
    name = relation.field.name
    rows = model._base_manager.filter(**{name: OuterRef("pk")})  # noqa: SLF001
    if model in TOLD:
        rows = rows.exclude(source="broker")
    return rows.values(name)[:1]


def _words(topic: Topic, records: Mapping[str, ForeignObjectRel]) -> list[str]:
    there = (each for flag, each in records.items() if getattr(topic, flag) is not None)
    return list(dict.fromkeys(_word(each) for each in there))


def _word(relation: ForeignObjectRel) -> str:
    meta = relation.related_model._meta  # noqa: SLF001
    return WORDS.get(meta.label, str(meta.verbose_name_plural))
