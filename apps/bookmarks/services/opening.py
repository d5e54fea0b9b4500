"""Take positions over: who opened them before is fenced from here on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Prefetch

from apps.bookmarks.models import BookmarkPosition, Mark
from apps.bookmarks.querysets import PositionQuerySet
from apps.bookmarks.states import Source
from apps.bookmarks.wire import Holder
from apps.brokers import topic_ids
from apps.brokers.models import Topic
from apps.brokers.services import topics as brokers
from apps.core import notices
from apps.core.errors import Forbidden
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What a holder may settle under this epoch, each position with its marks."""

    epoch: int
    positions: Sequence[BookmarkPosition]


@transaction.atomic
def open_positions(*, holder: Holder, principal: Principal, now: datetime) -> Opened:
    """Give all that this holder names to it alone, under an epoch above all of theirs.

    A position that is named in full is made when there is none yet. What the principal
    may not see is left alone.
    """
    if holder.topic is not None:
        _prepare(holder, holder.topic, principal, now=now)
    opened = list(
        _named(holder).on_topics(principal.topics).select_related("topic").locked()
    )
    epoch = max((position.epoch for position in opened), default=0) + 1
    fence(positions=opened, epoch=epoch)
    ids = [position.pk for position in opened]
    BookmarkPosition.objects.filter(pk__in=ids).update(observed_at=now)
    return Opened(epoch=epoch, positions=_whole(ids))


def fence(*, positions: Sequence[BookmarkPosition], epoch: int) -> None:
    """Give locked positions a new epoch, which their holders are told.

    Nothing that they settled under an older one is written after this commits.
    """
    ids = [position.pk for position in positions]
    # In the order in which settling locks them, or each could wait for the other.
    locked = Mark.objects.filter(position__in=ids).locked()
    marks = list(locked.values_list("pk", flat=True))
    BookmarkPosition.objects.filter(pk__in=ids).update(epoch=epoch)
    Mark.objects.filter(pk__in=marks).update(epoch=epoch)
    for position in positions:
        notices.notify_fence(
            topic=position.topic.name,
            client_name=position.client_name,
            sub_id=position.sub_id,
            epoch=epoch,
        )


def _prepare(holder: Holder, name: str, principal: Principal, *, now: datetime) -> None:
    if not principal.sees(name):
        raise Forbidden(f"This key may not use the topic {name}; give it the topic.")
    topic = brokers.topics_named(names=[name])[name]
    if holder.replays:
        Topic.objects.filter(pk=topic.pk, replays=False).update(replays=True)
    if holder.sub_id is None:
        return
    BookmarkPosition.objects.bulk_create(
        [
            BookmarkPosition(
                topic=topic,
                source=Source.SDK,
                client_name=holder.client_name,
                sub_id=holder.sub_id,
                observed_at=now,
                moved_at=now,
            )
        ],
        ignore_conflicts=True,
    )


def _named(holder: Holder) -> PositionQuerySet:
    found = BookmarkPosition.objects.settled_here().filter(
        client_name=holder.client_name
    )
    if holder.sub_id is not None:
        found = found.filter(sub_id=holder.sub_id)
    if holder.topic is not None:
        found = found.filter(topic_ids.named(holder.topic))
    return found


def _whole(ids: Sequence[int]) -> list[BookmarkPosition]:
    marks = Prefetch("marks", Mark.objects.order_by("publisher"))
    found = BookmarkPosition.objects.filter(pk__in=ids).select_related("topic")
    return list(found.prefetch_related(marks).order_by("topic__name", "sub_id"))
