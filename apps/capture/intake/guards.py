"""IN: what guards say of themselves; the newest word of each one is kept."""

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
from apps.capture.intake.services import Answer, Status
from apps.capture.models import Guard, GuardState
from apps.core.text import storable
from apps.team.rights import Principal
from poisonguard.contract import COUNT_LIMIT, NAME_LIMIT, TEXT_LIMIT, Invalid

# A guard tells of itself about once a minute; this long without a word is too long.
GUARD_LIVES = timedelta(minutes=3)
# A process that is not heard of for so long is gone: what replaced it tells of itself.
FORGOTTEN_AFTER = timedelta(hours=1)
SHOWN_CHARACTERS = 500
_UNCLEAN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class _Wrong(Exception):
    """A member cannot be used; says what to send instead."""


T = TypeVar("T")
_Parser = Callable[[object], T]
_Key = tuple[uuid.UUID, str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardHeartbeat:
    """What one guard says of itself.

    `skips_age` are the seconds since its skip list was known to be current, None while
    it has none. `spooled` reports wait on its disk, `suspected` messages are withheld.
    Paused, it says since when messages failed that count against it.
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


def note(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[Answer]:
    """Keep the newest word of each guard; one bad member never sinks the rest."""
    answers: dict[int, Answer] = {}
    told: dict[int, GuardHeartbeat] = {}
    for place, member in enumerate(members):
        try:
            told[place] = _in_scope(parse(member), principal)
        except Invalid as wrong:
            answers[place] = Answer(
                status=Status.REJECTED, detail=wrong.detail, pointer=wrong.pointer
            )
    newest: dict[_Key, GuardHeartbeat] = {}
    for word in told.values():
        if word.key not in newest or newest[word.key].at < word.at:
            newest[word.key] = word
    kept = _keep(list(newest.values()), now=now)
    _doubt([newest[key] for key in kept], now=now)
    for place, word in told.items():
        status = Status.DUPLICATE
        if newest[word.key] is word:
            status = kept.get(word.key, Status.DUPLICATE)
        answers[place] = Answer(status=status)
    return [answers[place] for place in range(len(members))]


def forget(*, now: datetime) -> int:
    """Forget the guards that have said nothing for long; tell how many."""
    forgotten, _ = Guard.objects.filter(heard_at__lt=now - FORGOTTEN_AFTER).delete()
    return forgotten


def parse(value: object) -> GuardHeartbeat:
    """Read one member of `guards`; raise the contract's `Invalid` for what is wrong."""
    if not isinstance(value, Mapping):
        raise Invalid("", "the item must be a JSON object.")

    def required(name: str, parser: _Parser[T]) -> T:
        found = optional(name, parser)
        if found is None:
            raise Invalid(f"/{name}", f"{name} is missing: send it.")
        return found

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


def _in_scope(word: GuardHeartbeat, principal: Principal) -> GuardHeartbeat:
    if not principal.sees(word.topic):
        raise Invalid(
            "/topic",
            f"this key may not write to the topic {word.topic}; "
            "give it the topic first",
        )
    return word


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


# A word that is older than the one that is kept came late. But a clock that was set
# back must not silence its guard: what is kept counts only while it is heard.
_KEEP = """
INSERT INTO capture_guard AS kept (reporter, topic_id, consumer_group, client_name,
    host, version, handler_version, state, detail, skips_age, spooled, suspected,
    journal, at, since, heard_at)
SELECT told.reporter, told.topic_id, told.consumer_group, told.client_name, told.host,
       told.version, told.handler_version, told.state, told.detail, told.skips_age,
       told.spooled, told.suspected, told.journal, told.at, told.at, %(now)s
FROM jsonb_to_recordset(%(rows)s::jsonb) AS told(
    reporter uuid, topic_id int8, consumer_group text, client_name text, host text,
    version text, handler_version text, state text, detail text, skips_age float8,
    spooled int8, suspected int8, journal bool, at timestamptz)
ORDER BY told.topic_id, told.consumer_group, told.client_name, told.reporter
ON CONFLICT (topic_id, consumer_group, client_name, reporter) DO UPDATE
SET host = excluded.host, version = excluded.version,
    handler_version = excluded.handler_version, state = excluded.state,
    detail = excluded.detail, skips_age = excluded.skips_age,
    spooled = excluded.spooled, suspected = excluded.suspected,
    journal = excluded.journal, at = excluded.at, heard_at = excluded.heard_at,
    since = CASE kept.state WHEN excluded.state THEN kept.since ELSE excluded.since END
WHERE excluded.at > kept.at OR kept.heard_at < %(unheard)s
RETURNING reporter, topic_id, consumer_group, client_name, xmax = 0
"""


def _keep(words: Sequence[GuardHeartbeat], *, now: datetime) -> dict[_Key, Status]:
    """Write the words down; tell of those that are kept whether the guard is new."""
    if not words:
        return {}
    topics = brokers.topics_named(names={word.topic for word in words})
    rows = json.dumps([_row(word, topics[word.topic].pk, now=now) for word in words])
    unheard = now - GUARD_LIVES
    with connection.cursor() as cursor:
        cursor.execute(_KEEP, {"rows": rows, "now": now, "unheard": unheard})
        found = cursor.fetchall()
    names = {topic.pk: name for name, topic in topics.items()}
    return {
        (reporter, names[topic], group, client): Status.CREATED
        if is_new
        else Status.UPDATED
        for reporter, topic, group, client, is_new in found
    }


def _doubt(words: Sequence[GuardHeartbeat], *, now: datetime) -> None:
    """End the skips that those made who say that they are paused."""
    topics = brokers.topics_named(names={word.topic for word in words})
    for word in words:
        if word.state is GuardState.PAUSED and word.failing_since is not None:
            suspicions.end_doubted(
                topic_id=topics[word.topic].pk,
                consumer_group=word.consumer_group,
                client_name=word.client_name,
                host=word.host,
                since=word.failing_since,
                now=now,
            )


def _row(word: GuardHeartbeat, topic_id: int, *, now: datetime) -> dict[str, Any]:
    at, _ = believed(word.at, now=now)
    return {
        "reporter": str(word.reporter),
        "topic_id": topic_id,
        "consumer_group": word.consumer_group,
        "client_name": word.client_name,
        "host": word.host,
        "version": word.version,
        "handler_version": word.handler_version,
        "state": word.state.value,
        "detail": storable(word.detail, limit=SHOWN_CHARACTERS),
        "skips_age": word.skips_age,
        "spooled": word.spooled,
        "suspected": word.suspected,
        "journal": word.journal,
        "at": at.isoformat(),
    }
