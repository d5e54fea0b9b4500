"""People say what lanes do: observe, capture or tee, and when they stand still.

A lane reads its row every second, so what is said here holds within two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.brokers.policies import require_queue
from apps.brokers.row_locks import hold
from apps.brokers.services.topics import name_queue_by_convention
from apps.capture.models import Lane, Mode
from apps.core.errors import Absent, Invalid, Refused
from apps.core.text import storable
from apps.team.rights import Principal, Scope


def set_mode(
    *,
    topic: Topic,
    mode: Mode,
    tee_queue: str = "",
    reason: str = "",
    principal: Principal,
    now: datetime,
) -> Lane:
    """Say what is to be done with a topic's dead letters; idempotent.

    `tee_queue` is the queue, by the broker's own name, that copies go to. A topic
    without a dead-letter queue gets that of its kind's convention.
    """
    _may(principal, topic)
    with transaction.atomic():
        hold(topics=[topic.pk])
        if not _has_queue(topic):
            topic = name_queue_by_convention(
                topic=topic, principal=principal, reason=reason, now=now
            )
        _require_queue(topic)
        _check_tee(topic, mode, tee_queue)
        lane, made = Lane.objects.select_for_update().get_or_create(topic=topic)
        if not made and (lane.mode, lane.tee_queue) == (mode.value, tee_queue):
            return lane
        if lane.tee_queue != tee_queue:
            require_queue(principal, topic, tee_queue)
        before = {} if made else {"mode": lane.mode, "tee_queue": lane.tee_queue}
        after = {"mode": mode.value, "tee_queue": tee_queue}
        lane.mode, lane.tee_queue = mode.value, tee_queue
        lane.save(update_fields=["mode", "tee_queue"])
        detail = {**after, "before": before, "after": after}
        _record(
            Action.LANE_SET, f"lane:{topic.name}", detail, principal, reason, now=now
        )
    return lane


def pause(
    *, topic: Topic, reason: str = "", principal: Principal, now: datetime
) -> Lane:
    """Let a topic's lane stand still: it reads nothing until it is resumed."""
    return _set_paused(topic, paused=True, reason=reason, principal=principal, now=now)


def resume(
    *, topic: Topic, reason: str = "", principal: Principal, now: datetime
) -> Lane:
    """Let a topic's lane go on as its mode says."""
    return _set_paused(topic, paused=False, reason=reason, principal=principal, now=now)


def observe_all(*, topics: Iterable[Topic], principal: Principal, now: datetime) -> int:
    """Observe those of these topics that have no lane yet; give their number.

    One that cannot have a lane is left out: it has no dead-letter queue.
    """
    principal.require(Scope.BROKERS_WRITE)
    able = [t for t in topics if _has_queue(t) and principal.sees(t.name)]
    with transaction.atomic():
        hold(topics=[topic.pk for topic in able])
        known = Lane.objects.filter(topic__in=able).values_list("topic_id", flat=True)
        fresh = [topic for topic in able if topic.pk not in set(known)]
        Lane.objects.bulk_create(
            [Lane(topic=topic) for topic in fresh], ignore_conflicts=True
        )
        if fresh:
            names = sorted(topic.name for topic in fresh)
            detail = {"mode": Mode.OBSERVE.value, "topics": names}
            _record(Action.LANE_SET, "lanes", detail, principal, now=now)
    return len(fresh)


@transaction.atomic
def _set_paused(
    topic: Topic, *, paused: bool, reason: str, principal: Principal, now: datetime
) -> Lane:
    _may(principal, topic)
    _require_queue(topic)
    lane = Lane.objects.select_for_update().filter(topic=topic).first()
    if lane is None:
        raise Absent(f"The topic {topic.name} has no lane.")
    if lane.paused is paused:
        return lane
    lane.paused = paused
    lane.save(update_fields=["paused"])
    action = Action.LANE_PAUSED if paused else Action.LANE_RESUMED
    _record(action, f"lane:{topic.name}", {}, principal, reason, now=now)
    return lane


def _may(principal: Principal, topic: Topic) -> None:
    principal.require(Scope.BROKERS_WRITE)
    if not principal.sees(topic.name):
        raise Absent(f"There is no topic {topic.name} here.")


def _require_queue(topic: Topic) -> None:
    if not _has_queue(topic):
        raise Refused(
            f"The topic {topic.name} has no lane: name its broker and its dead-letter "
            "queue first."
        )


def _has_queue(topic: Topic) -> bool:
    return topic.broker_id is not None and topic.dead_letter_queue != ""


def _check_tee(topic: Topic, mode: Mode, tee_queue: str) -> None:
    if mode is not Mode.TEE:
        if tee_queue:
            raise Invalid("tee_queue", f"a lane in mode {mode} sends no copies.")
        return
    if not tee_queue:
        raise Invalid("tee_queue", "name the queue that copies go to.")
    if storable(tee_queue) != tee_queue:
        raise Invalid("tee_queue", "it holds a character that no queue's name has.")
    if tee_queue in {topic.native_name, topic.dead_letter_queue}:
        raise Invalid(
            "tee_queue", "copies must go elsewhere than the topic and its dead letters."
        )


def _record(
    action: Action,
    subject: str,
    detail: Mapping[str, object],
    principal: Principal,
    reason: str = "",
    *,
    now: datetime,
) -> None:
    audit.record(
        action=action,
        subject=subject,
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail=detail,
    )
