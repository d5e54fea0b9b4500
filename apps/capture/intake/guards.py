"""IN: heartbeats of guards; the newest of each guard is stored."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db import connection

from apps.brokers.services import topics as brokers
from apps.capture.intake import suspicions
from apps.capture.intake.occurrence import believed
from apps.capture.intake.services import CaptureAnswer, CaptureStatus
from apps.capture.models import Guard, GuardState
from apps.core.text import storable
from apps.team.rights import Principal
from poisonguard.contract import COUNT_LIMIT, NAME_LIMIT, TEXT_LIMIT, Invalid

# A guard sends a heartbeat about once a minute; after this long it counts as silent.
GUARD_LIVES = timedelta(minutes=3)
# A process this long silent is gone; its replacement sends heartbeats of its own.
PRUNED_AFTER = timedelta(hours=1)
SHOWN_CHARACTERS = 500
_UNCLEAN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class _Wrong(Exception):
    """A member is invalid; the text says what to send instead."""


T = TypeVar("T")
_Parser = Callable[[object], T]
_Key = tuple[uuid.UUID, str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardHeartbeat:
    """State of one guard, as it reports it.

    `skips_age` is the seconds since its skip list was last current, None while it has
    none. `spooled` counts reports on its disk, `suspected` counts withheld messages.
    `failing_since` is when the failures began that made a paused guard pause.
    """

    reporter: uuid.UUID
    topic: str
    consumer_group: str
    client_name: str
    host: str | None
    version: str | None
    handler_version: str | None
    state: GuardState
    detail: str
    skips_age: float | None
    spooled: int
    suspected: int
    journal: bool
    failing_since: datetime | None
    at: datetime

    @property
    def key(self) -> _Key:
        return self.reporter, self.topic, self.consumer_group, self.client_name


def record_heartbeats(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[CaptureAnswer]:
    """Store the newest heartbeat of each guard; reject invalid members one by one."""
    answers: dict[int, CaptureAnswer] = {}
    heartbeats: dict[int, GuardHeartbeat] = {}
    for index, member in enumerate(members):
        try:
            heartbeats[index] = _in_scope(parse_heartbeat(member), principal)
        except Invalid as error:
            answers[index] = CaptureAnswer(
                status=CaptureStatus.REJECTED,
                detail=error.detail,
                pointer=error.pointer,
            )
    newest: dict[_Key, GuardHeartbeat] = {}
    for heartbeat in heartbeats.values():
        key = heartbeat.key
        if key not in newest or newest[key].at < heartbeat.at:
            newest[key] = heartbeat
    statuses = _store(list(newest.values()), now=now)
    _end_doubted_skips([newest[key] for key in statuses], now=now)
    for index, heartbeat in heartbeats.items():
        status = CaptureStatus.DUPLICATE
        if newest[heartbeat.key] is heartbeat:
            status = statuses.get(heartbeat.key, CaptureStatus.DUPLICATE)
        answers[index] = CaptureAnswer(status=status)
    return [answers[index] for index in range(len(members))]


def prune(*, now: datetime) -> int:
    """Delete guards that have been silent for an hour; return how many."""
    number, _ = Guard.objects.filter(heard_at__lt=now - PRUNED_AFTER).delete()
    return number


def parse_heartbeat(value: object) -> GuardHeartbeat:
    """Parse one member of `guards`; raise the contract's `Invalid` if it is invalid."""
    if not isinstance(value, Mapping):
        raise Invalid("", "the item must be a JSON object.")

    def required(name: str, parser: _Parser[T]) -> T:
        parsed = optional(name, parser)
        if parsed is None:
            raise Invalid(f"/{name}", f"{name} is missing: send it.")
        return parsed

    def optional(name: str, parser: _Parser[T]) -> T | None:
        member = value.get(name)
        try:
            return None if member is None else parser(member)
        except _Wrong as remedy:
            raise Invalid(f"/{name}", f"{name} {remedy}") from None

    return GuardHeartbeat(
        reporter=required("reporter", _uuid),
        topic=required("topic", _name),
        consumer_group=required("consumer_group", _name),
        client_name=required("client_name", _name),
        host=optional("host", _name),
        version=optional("version", _name),
        handler_version=optional("handler_version", _name),
        state=required("state", _state),
        detail=optional("detail", _text) or "",
        skips_age=optional("skips_age_s", _seconds),
        spooled=required("spooled", _count),
        suspected=required("suspected", _count),
        journal=required("journal", _flag),
        failing_since=optional("failing_since", _moment),
        at=required("at", _moment),
    )


def _in_scope(heartbeat: GuardHeartbeat, principal: Principal) -> GuardHeartbeat:
    if not principal.sees(heartbeat.topic):
        raise Invalid(
            "/topic",
            f"this key may not write to the topic {heartbeat.topic}; "
            "give it the topic first",
        )
    return heartbeat


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Wrong("must be text: send a JSON string.")
    if len(value) > TEXT_LIMIT:
        raise _Wrong(f"is longer than {TEXT_LIMIT} characters: shorten it.")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if not text.strip() or len(text) > NAME_LIMIT:
        raise _Wrong(f"must be 1 to {NAME_LIMIT} characters long.")
    if _UNCLEAN.search(text):
        raise _Wrong("holds a control character or half a surrogate pair: remove it.")
    return text


def _state(value: object) -> GuardState:
    if value not in list(GuardState):
        raise _Wrong(f"is unknown: send one of {', '.join(GuardState)}.")
    return GuardState(str(value))


def _uuid(value: object) -> uuid.UUID:
    text = _text(value).lower()
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        parsed = None
    # UUID() also reads braces, missing hyphens and digits of other scripts.
    if parsed is None or str(parsed) != text:
        raise _Wrong("is no UUID: send it as 8-4-4-4-12 hexadecimal digits.")
    return parsed


def _count(value: object) -> int:
    # A bool is an int to Python and a different thing to JSON.
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Wrong("must be a whole number.")
    if not 0 <= value <= COUNT_LIMIT:
        raise _Wrong(f"must be from 0 to {COUNT_LIMIT}.")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _Wrong("must be a number of seconds.")
    # JSON as Python reads it has NaN and Infinity; Postgres and the page have not.
    if not (0 <= value <= COUNT_LIMIT) or not math.isfinite(value):
        raise _Wrong(f"must be from 0 to {COUNT_LIMIT} seconds.")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("must be true or false.")
    return value


def _moment(value: object) -> datetime:
    remedy = "is no time: send it in UTC, like 2026-11-20T09:30:00Z."
    try:
        moment = datetime.fromisoformat(_text(value))
        if moment.tzinfo:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _Wrong(remedy) from None
    raise _Wrong(remedy)


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
    """Write the heartbeats; return the status of each that was stored."""
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
    """End the skips that guards made which now say that they are paused."""
    topics = brokers.topics_named(names={beat.topic for beat in heartbeats})
    for beat in heartbeats:
        if beat.state is GuardState.PAUSED and beat.failing_since is not None:
            suspicions.end_doubted(
                topic_id=topics[beat.topic].pk,
                consumer_group=beat.consumer_group,
                client_name=beat.client_name,
                host=beat.host,
                since=beat.failing_since,
                now=now,
            )


def _row(heartbeat: GuardHeartbeat, topic_id: int, *, now: datetime) -> dict[str, Any]:
    at, _ = believed(heartbeat.at, now=now)
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
        "skips_age": heartbeat.skips_age,
        "spooled": heartbeat.spooled,
        "suspected": heartbeat.suspected,
        "journal": heartbeat.journal,
        "at": at.isoformat(),
    }
