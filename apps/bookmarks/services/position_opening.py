"""Open positions: this fences the holder that opened them before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Prefetch

from apps.bookmarks.consumer_request_parsing import Holder
from apps.bookmarks.models import BookmarkPosition, Mark
from apps.bookmarks.position_keepers import PositionSource
from apps.bookmarks.querysets import PositionQuerySet
from apps.brokers import topic_names_to_id_filters
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core import notify_channel
from apps.core.errors import Forbidden
from apps.team.rights import Principal


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedPositions:
    """The positions that a holder may settle under this epoch, with their marks."""

    epoch: int
    positions: Sequence[BookmarkPosition]


@transaction.atomic
def open_positions(
    *, holder: Holder, principal: Principal, now: datetime
) -> OpenedPositions:
    """Open the positions that this holder names, under a new highest epoch.

    If the holder names a position in full, create it if it does not exist. Positions
    that the principal may not see are left out.
    """
    if holder.topic is not None:
        _register_topic_and_position(holder, holder.topic, principal, now=now)
    positions = list(
        _positions_of(holder)
        .on_topics(principal.topics)
        .select_related("topic")
        .locked()
    )
    epoch = max((position.epoch for position in positions), default=0) + 1
    fence(positions=positions, epoch=epoch)
    ids = [position.pk for position in positions]
    BookmarkPosition.objects.filter(pk__in=ids).update(observed_at=now)
    return OpenedPositions(epoch=epoch, positions=_with_marks(ids))


def fence(*, positions: Sequence[BookmarkPosition], epoch: int) -> None:
    """Set a new epoch on locked positions, and notify their holders.

    After this commits, nothing is written that was settled under an older epoch.
    """
    ids = [position.pk for position in positions]
    # Lock in the same order as settling does, or the two could deadlock.
    locked = Mark.objects.filter(position__in=ids).locked()
    marks = list(locked.values_list("pk", flat=True))
    BookmarkPosition.objects.filter(pk__in=ids).update(epoch=epoch)
    Mark.objects.filter(pk__in=marks).update(epoch=epoch)
    for position in positions:
        notify_channel.notify_fence(
            topic=position.topic.name,
            client_name=position.client_name,
            sub_id=position.sub_id,
            epoch=epoch,
        )


def _register_topic_and_position(
    holder: Holder, name: str, principal: Principal, *, now: datetime
) -> None:
    """Register a holder's topic, and create its position there if it names a sub id.

    Raises Forbidden for a hidden topic. If old messages are handed out again, the topic
    stores that.
    """
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
                source=PositionSource.SDK,
                client_name=holder.client_name,
                sub_id=holder.sub_id,
                observed_at=now,
                moved_at=now,
            )
        ],
        ignore_conflicts=True,
    )


def _positions_of(holder: Holder) -> PositionQuerySet:
    """Select the positions that the holder names, of one topic or of all."""
    positions = BookmarkPosition.objects.settled_here().filter(
        client_name=holder.client_name
    )
    if holder.sub_id is not None:
        positions = positions.filter(sub_id=holder.sub_id)
    if holder.topic is not None:
        positions = positions.filter(topic_names_to_id_filters.by_name(holder.topic))
    return positions


def _with_marks(ids: Sequence[int]) -> list[BookmarkPosition]:
    """Read positions with their marks and topics, ordered by topic."""
    marks = Prefetch("marks", Mark.objects.order_by("publisher"))
    positions = BookmarkPosition.objects.filter(pk__in=ids).select_related("topic")
    return list(positions.prefetch_related(marks).order_by("topic__name", "sub_id"))
