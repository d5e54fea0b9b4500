"""Delete a topic, or a broker with its topics, only while no record refers to it.

What a lane observed of a topic is still at its broker, and is deleted with the topic.
Every other row that refers to a topic is a record and blocks its removal; this includes
the rows of tables that are added later.

Locks are taken in this order: the broker, its topics, what a lane writes of them (it
locks the topic first), and the head of the audit trail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import OuterRef, Subquery
from django.db.models.fields.reverse_related import ForeignObjectRel

from apps.audit import services as audit
from apps.audit.services import Action
from apps.bookmarks.models import BookmarkPosition
from apps.brokers import allow_lists_of_older_brokers
from apps.brokers.models import Broker, Topic
from apps.brokers.topic_querysets import TopicQuerySet
from apps.capture.models import (
    Counter,
    HeldDeadLetter,
    Lane,
    OversizeMessage,
    Sample,
)
from apps.core.errors import Absent, Refused
from apps.core.queryset_sql import read_by_index
from apps.team.rights import Principal, Scope

MOST_NAMED = 10
# What lanes and consumers observed; deleted with the topic, as the broker still has it.
OBSERVATIONS: set[type[models.Model]] = {
    Lane,
    Sample,
    HeldDeadLetter,
    OversizeMessage,
}
# Of these, rows whose source is the broker are deleted with the topic.
BROKER_SOURCED: set[type[models.Model]] = {BookmarkPosition, Counter}
# How a refusal names each kind of record. Sibling apps are named, not imported.
RECORD_NAMES: Mapping[str, str] = {
    "brokers.Topic": "a topic that is requeued to it",
    "poison.Poison": "messages",
    "poison.Problem": "messages",
    "poison.Redrive": "messages",
    "capture.Delivery": "messages",
    "poison.Skip": "skips",
    "poison.SkipList": "skips",
    "poison.WaitingSkip": "skips",
    "bookmarks.BookmarkPosition": "positions",
    "triage.Operation": "operations",
    "triage.Redirect": "operations",
    "reports.Rate": "reports",
    "reports.EndpointDay": "reports",
    "redelivery.Endpoint": "an endpoint",
    "capture.Counter": "counts of its consumers",
    "capture.Guard": "guards",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedTopic:
    """A topic that cannot be removed, and the kinds of records that refer to it."""

    topic: Topic
    records: list[str]

    def __str__(self) -> str:
        return f"{self.topic.name} ({', '.join(self.records)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovalPreview:
    """Which of some topics can be removed, and which cannot."""

    removable: list[Topic]
    blocked: list[BlockedTopic]


class RecordsExist(Refused):
    """Records refer to topics that were to be removed."""

    problem = "on-record"

    def __init__(self, blocked: Sequence[BlockedTopic]) -> None:
        named = "; ".join(str(each) for each in blocked[:MOST_NAMED])
        more = len(blocked) - MOST_NAMED
        super().__init__(
            f"Nothing was removed: {named}{f'; and {more} more' if more > 0 else ''} "
            f"{'has' if len(blocked) == 1 else 'have'} something on record here, which "
            "stays. Pause a lane, and nothing is read from its topic any more."
        )


class ChangedSincePreview(Refused):
    """What would go is not what you looked at: look again. Nothing was removed."""

    problem = "otherwise"


@transaction.atomic
def preview(topics: TopicQuerySet) -> RemovalPreview:
    """Find which topics can be removed, and which ones records refer to."""
    records = _relations_that_may_block()
    annotations = {flag: Subquery(_one_row(each)) for flag, each in records.items()}
    # Postgres expects rows of any topic, and would read whole tables to find none.
    read_by_index()
    removable, blocked = [], []
    for topic in topics.annotate(**annotations).order_by("name"):
        if names := _record_names(topic, records):
            blocked.append(BlockedTopic(topic=topic, records=names))
        else:
            removable.append(topic)
    return RemovalPreview(removable=removable, blocked=blocked)


@transaction.atomic
def remove_broker(
    *,
    broker: Broker,
    previewed_ids: Collection[int] | None = None,
    reason: str = "",
    principal: Principal,
    now: datetime,
) -> None:
    """Remove a broker with all of its topics; raise RecordsExist if one is blocked.

    Raise ChangedSincePreview if its topics differ from the `previewed_ids`.
    """
    allow_lists_of_older_brokers.require_all_topics(principal)
    locked = Broker.objects.select_for_update().filter(pk=broker.pk).first()
    if locked is None:
        raise Absent(f"There is no broker {broker.pk} here.")
    names = _remove(locked.topics.all(), previewed_ids)
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
    """Remove these topics, all or none; raise RecordsExist if one is blocked."""
    principal.require(Scope.BROKERS_WRITE)
    if not topics:
        raise ChangedSincePreview
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


def _remove(topics: TopicQuerySet, previewed_ids: Collection[int] | None) -> list[str]:
    """Delete the topics with what lanes observed of them; return their names.

    Raises ChangedSincePreview if they differ from the `previewed_ids`, and RecordsExist
    if records refer to one.
    """
    # Other writers commit their rows of a topic before this, or find no topic.
    locked = list(topics.select_for_update().order_by("pk"))
    ids = [topic.pk for topic in locked]
    if previewed_ids is not None and set(ids) != set(previewed_ids):
        raise ChangedSincePreview
    blocked = preview(Topic.objects.filter(pk__in=ids)).blocked
    if blocked:
        raise RecordsExist(blocked)
    Counter.objects.filter(topic__in=ids, source="broker").delete()
    Topic.objects.filter(pk__in=ids).delete()
    return sorted(topic.name for topic in locked)


def _relations_that_may_block() -> dict[str, ForeignObjectRel]:
    """List the models' relations to topics whose rows may block a topic's removal."""
    # As Django finds them for its own deletions (see django.db.models.deletion).
    fields = Topic._meta.get_fields(include_hidden=True)  # noqa: SLF001
    return {
        f"record_{place}": each
        for place, each in enumerate(fields)
        if isinstance(each, ForeignObjectRel) and each.related_model not in OBSERVATIONS
    }


def _one_row(relation: ForeignObjectRel) -> models.QuerySet[Any, Any]:
    """Build a subquery that yields a row if a record refers to the outer query's topic.

    Counters that the broker supplied do not count as records.
    """
    model: type[models.Model] = relation.related_model
    name = relation.field.name
    rows = model._base_manager.filter(**{name: OuterRef("pk")})  # noqa: SLF001
    if model in BROKER_SOURCED:
        rows = rows.exclude(source="broker")
    return rows.values(name)[:1]


def _record_names(topic: Topic, records: Mapping[str, ForeignObjectRel]) -> list[str]:
    """Name the kinds of records that refer to the topic."""
    present = (
        each for flag, each in records.items() if getattr(topic, flag) is not None
    )
    return list(dict.fromkeys(_name_of(each) for each in present))


def _name_of(relation: ForeignObjectRel) -> str:
    """Name the records of a relation that block a topic's removal, for people."""
    meta = relation.related_model._meta  # noqa: SLF001
    return RECORD_NAMES.get(meta.label, str(meta.verbose_name_plural))
