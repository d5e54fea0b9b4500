"""Store the newest heartbeat of each guard."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.intake import message_or_consumer_at_fault
from apps.capture.intake.occurrence import credible_time
from apps.capture.intake.services import (
    CaptureAnswer,
    CaptureStatus,
    refuse_hidden,
    reject,
)
from apps.capture.models import Guard
from apps.core.batch_requests import Batch
from apps.core.text_cleaning import storable
from apps.team.rights import Principal
from poisonguard.contract import GuardHeartbeat, GuardState, parse_heartbeat

# A guard sends a heartbeat about once a minute; after this long it counts as silent.
GUARD_LIVES = timedelta(minutes=3)
# A process this long silent is gone; its replacement sends heartbeats of its own.
PRUNED_AFTER = timedelta(hours=1)
SHOWN_CHARACTERS = 500
_Key = tuple[uuid.UUID, str, str, str]


def record_heartbeats(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[CaptureAnswer]:
    """Store the newest heartbeat of each guard; return the answer to each, in order.

    Invalid heartbeats, and those of hidden topics, are rejected one by one. Skips of
    guards that are now paused are ended.
    """
    batch = Batch(members, parse_heartbeat, reject)
    batch.answer(lambda beat: refuse_hidden(beat.topic, principal))
    newest: dict[_Key, GuardHeartbeat] = {}
    for heartbeat in batch.unanswered:
        key = _guard_key(heartbeat)
        if key not in newest or newest[key].at < heartbeat.at:
            newest[key] = heartbeat
    statuses = _store(list(newest.values()), now=now)
    _end_doubted_skips([newest[key] for key in statuses], now=now)

    def answer(heartbeat: GuardHeartbeat) -> CaptureAnswer:
        key = _guard_key(heartbeat)
        is_stored = newest[key] is heartbeat and key in statuses
        status = statuses[key] if is_stored else CaptureStatus.DUPLICATE
        return CaptureAnswer(status=status)

    return batch.in_order(map(answer, batch.unanswered))


def prune(*, now: datetime) -> int:
    """Delete guards that have been silent for an hour; return how many."""
    number, _ = Guard.objects.filter(heard_at__lt=now - PRUNED_AFTER).delete()
    return number


def _guard_key(heartbeat: GuardHeartbeat) -> _Key:
    """Return the columns that identify a guard: reporter, topic, group, client."""
    return (
        heartbeat.reporter,
        heartbeat.topic,
        heartbeat.consumer_group,
        heartbeat.client_name,
    )


# Ignore a heartbeat older than the stored one: it came late. But a clock that was set
# back must not silence its guard, so a stored one stops counting once it goes stale.
_STORE = """
INSERT INTO capture_guard AS stored (reporter, topic_id, consumer_group, client_name,
    host, version, handler_version, state, detail, skips_age, spooled, suspected,
    journal, at, since, heard_at)
SELECT beat.reporter, beat.topic_id, beat.consumer_group, beat.client_name, beat.host,
       beat.version, beat.handler_version, beat.state, beat.detail, beat.skips_age,
       beat.spooled, beat.suspected, beat.journal, beat.at, beat.at, %(now)s
FROM jsonb_to_recordset(%(rows)s::jsonb) AS beat(
    reporter uuid, topic_id int8, consumer_group text, client_name text, host text,
    version text, handler_version text, state text, detail text, skips_age float8,
    spooled int8, suspected int8, journal bool, at timestamptz)
ORDER BY beat.topic_id, beat.consumer_group, beat.client_name, beat.reporter
ON CONFLICT (topic_id, consumer_group, client_name, reporter) DO UPDATE
SET host = excluded.host, version = excluded.version,
    handler_version = excluded.handler_version, state = excluded.state,
    detail = excluded.detail, skips_age = excluded.skips_age,
    spooled = excluded.spooled, suspected = excluded.suspected,
    journal = excluded.journal, at = excluded.at, heard_at = excluded.heard_at,
    since = CASE stored.state WHEN excluded.state THEN stored.since
            ELSE excluded.since END
WHERE excluded.at > stored.at OR stored.heard_at < %(silent_before)s
RETURNING reporter, topic_id, consumer_group, client_name, xmax = 0
"""


def _store(
    heartbeats: Sequence[GuardHeartbeat], *, now: datetime
) -> dict[_Key, CaptureStatus]:
    """Write guards' heartbeats; return the status of each that was stored."""
    if not heartbeats:
        return {}
    topics = brokers.topics_named(names={beat.topic for beat in heartbeats})
    rows = json.dumps(
        [_row(beat, topics[beat.topic].pk, now=now) for beat in heartbeats]
    )
    silent_before = now - GUARD_LIVES
    with connection.cursor() as cursor:
        cursor.execute(
            _STORE, {"rows": rows, "now": now, "silent_before": silent_before}
        )
        stored_rows = cursor.fetchall()
    names = {topic.pk: name for name, topic in topics.items()}
    return {
        (reporter, names[topic], group, client): CaptureStatus.CREATED
        if is_new
        else CaptureStatus.UPDATED
        for reporter, topic, group, client, is_new in stored_rows
    }


def _end_doubted_skips(heartbeats: Sequence[GuardHeartbeat], *, now: datetime) -> None:
    """End skips of guards that now report a pause, from the start of their failures."""
    topics = brokers.topics_named(names={beat.topic for beat in heartbeats})
    for beat in heartbeats:
        if beat.state is GuardState.PAUSED and beat.failing_since is not None:
            message_or_consumer_at_fault.end_doubted(
                topic_id=topics[beat.topic].pk,
                consumer_group=beat.consumer_group,
                client_name=beat.client_name,
                host=beat.host,
                since=beat.failing_since,
                now=now,
            )


def _row(heartbeat: GuardHeartbeat, topic_id: int, *, now: datetime) -> dict[str, Any]:
    """Build the row of a guard's heartbeat, as the statement takes it."""
    at, _ = credible_time(heartbeat.at, now=now)
    return {
        "reporter": str(heartbeat.reporter),
        "topic_id": topic_id,
        "consumer_group": heartbeat.consumer_group,
        "client_name": heartbeat.client_name,
        "host": heartbeat.host,
        "version": heartbeat.version,
        "handler_version": heartbeat.handler_version,
        "state": heartbeat.state.value,
        "detail": storable(heartbeat.detail, limit=SHOWN_CHARACTERS),
        "skips_age": heartbeat.skips_age_s,
        "spooled": heartbeat.spooled,
        "suspected": heartbeat.suspected,
        "journal": heartbeat.journal,
        "at": at.isoformat(),
    }
