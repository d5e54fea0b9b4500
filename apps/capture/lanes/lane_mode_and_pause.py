"""Settings of lanes that people change: mode, tee queue and pause.

A lane reads its row every second, so a change takes effect within two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db import transaction

from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.brokers.row_locks import lock_topics
from apps.brokers.services.topics_and_routing_publisher import name_queue_by_convention
from apps.brokers.topic_policies import require_queue
from apps.capture.models import Lane, Mode
from apps.core.errors import Absent, Invalid, Refused
from apps.core.text_cleaning import storable
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
    """Set what a lane does with its topic's dead letters; idempotent.

    `tee_queue` is the queue for copies, by the broker's own name. A topic without a
    dead-letter queue gets the name that its kind of broker uses by convention.
    """
    _require_rights(principal, topic)
    with transaction.atomic():
        lock_topics(topics=[topic.pk])
        if not _has_queue(topic):
            topic = name_queue_by_convention(
                topic=topic, principal=principal, reason=reason, now=now
            )
        _require_queue(topic)
        _check_tee(topic, mode, tee_queue)
        lane, is_new = Lane.objects.select_for_update().get_or_create(topic=topic)
        if not is_new and (lane.mode, lane.tee_queue) == (mode.value, tee_queue):
            return lane
        if lane.tee_queue != tee_queue:
            require_queue(principal, topic, tee_queue)
        before = {} if is_new else {"mode": lane.mode, "tee_queue": lane.tee_queue}
        after = {"mode": mode.value, "tee_queue": tee_queue}
        lane.mode, lane.tee_queue = mode.value, tee_queue
        lane.save(update_fields=["mode", "tee_queue"])
        detail = {**after, "before": before, "after": after}
        _audit_decision(
            Action.LANE_SET, f"lane:{topic.name}", detail, principal, reason, now=now
        )
    return lane


def pause(
    *, topic: Topic, reason: str = "", principal: Principal, now: datetime
) -> Lane:
    """Pause a topic's lane: it reads nothing until it is resumed."""
    return _set_paused(topic, paused=True, reason=reason, principal=principal, now=now)


def resume(
    *, topic: Topic, reason: str = "", principal: Principal, now: datetime
) -> Lane:
    """Resume a topic's lane in its mode."""
    return _set_paused(topic, paused=False, reason=reason, principal=principal, now=now)


def observe_all(*, topics: Iterable[Topic], principal: Principal, now: datetime) -> int:
    """Add a lane in observe mode to each topic without one; return how many.

    Topics without a dead-letter queue are left out.
    """
    principal.require(Scope.BROKERS_WRITE)
    eligible = [t for t in topics if _has_queue(t) and principal.sees(t.name)]
    with transaction.atomic():
        lock_topics(topics=[topic.pk for topic in eligible])
        laned = Lane.objects.filter(topic__in=eligible)
        existing = set(laned.values_list("topic_id", flat=True))
        new = [topic for topic in eligible if topic.pk not in existing]
        Lane.objects.bulk_create(
            [Lane(topic=topic) for topic in new], ignore_conflicts=True
        )
        if new:
            names = sorted(topic.name for topic in new)
            detail = {"mode": Mode.OBSERVE.value, "topics": names}
            _audit_decision(Action.LANE_SET, "lanes", detail, principal, now=now)
    return len(new)


@transaction.atomic
def _set_paused(
    topic: Topic, *, paused: bool, reason: str, principal: Principal, now: datetime
) -> Lane:
    """Pause or resume a lane and audit that; leave one that already is so."""
    _require_rights(principal, topic)
    _require_queue(topic)
    lane = Lane.objects.select_for_update().filter(topic=topic).first()
    if lane is None:
        raise Absent(f"The topic {topic.name} has no lane.")
    if lane.paused is paused:
        return lane
    lane.paused = paused
    lane.save(update_fields=["paused"])
    action = Action.LANE_PAUSED if paused else Action.LANE_RESUMED
    _audit_decision(action, f"lane:{topic.name}", {}, principal, reason, now=now)
    return lane


def _require_rights(principal: Principal, topic: Topic) -> None:
    """Raise Forbidden or Absent unless the principal may set this lane."""
    principal.require(Scope.BROKERS_WRITE)
    if not principal.sees(topic.name):
        raise Absent(f"There is no topic {topic.name} here.")


def _require_queue(topic: Topic) -> None:
    """Raise Refused unless a lane can read the topic: broker, dead-letter queue."""
    if not _has_queue(topic):
        raise Refused(
            f"The topic {topic.name} has no lane: name its broker and its dead-letter "
            "queue first."
        )


def _has_queue(topic: Topic) -> bool:
    """Tell whether the topic has a broker and a dead-letter queue."""
    return topic.broker_id is not None and topic.dead_letter_queue != ""


def _check_tee(topic: Topic, mode: Mode, tee_queue: str) -> None:
    """Raise Invalid for a missing, needless or unusable queue of copies."""
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


def _audit_decision(
    action: Action,
    subject: str,
    detail: Mapping[str, object],
    principal: Principal,
    reason: str = "",
    *,
    now: datetime,
) -> None:
    """Append a decision on lanes to the audit."""
    audit.record(
        action=action,
        subject=subject,
        actor=principal.actor,
        source=principal.source,
        reason=reason,
        now=now,
        detail=detail,
    )
