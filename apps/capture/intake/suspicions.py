"""Who is sick, the message or its consumer? Only other consumers can tell.

Where one consumer of a group fails on a message by an exception while another one
lives, its skip is suspected: the others go on handling the message, and say so. Then
the skip ends, and the consumer that failed is shown as suspect (`end_handled`). A
failure of a second consumer makes the skip firm at once, and so does `PATIENCE` without
a word, unless the first consumer is paused by then. When it pauses, the skips end that
it made of the messages which count against it (`end_doubted`).

A consumer is a client name on a host: its processes share what is wrong with it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from apps.capture.models import GuardState
from apps.core import notices
from apps.core.actor import Actor
from apps.poison import skip_list
from apps.poison.models import Skip
from apps.poison.states import Because
from apps.team.rights import Principal
from poisonguard.contract import Cause

log = logging.getLogger(__name__)

# For who is handed the message a little later, or has to look up what it handled.
PATIENCE = timedelta(seconds=60)
# So long after its last word a consumer may still say what it handled.
LIVES = timedelta(minutes=3)
# No breaker looks further back: five hundred messages, however slowly they came.
LONGEST_WINDOW = timedelta(days=1)
AT_ONCE = 1_000
ACTOR = Actor.system("skips")

_ANOTHER_LIVES = """
EXISTS (SELECT FROM capture_guard guard
        WHERE guard.topic_id = incoming.topic_id
          AND guard.consumer_group = incoming.consumer_group
          AND guard.heard_at > %(lives_since)s AND guard.state <> %(stopping)s
          AND (guard.client_name, coalesce(guard.host, ''))
              <> (incoming.client_name, coalesce(incoming.host, '')))
"""
_ANOTHER_FAILED = """
EXISTS (SELECT FROM poison_failure failure
        WHERE failure.poison_id = incoming.poison_id AND NOT failure.suspected
          AND failure.client_name <> ''
          AND (failure.client_name, coalesce(failure.host, ''))
              <> (incoming.client_name, coalesce(incoming.host, '')))
"""
# Of a row of `incoming`, whose failures are written down by then.
MAY_BE_ITS_CONSUMER = f"""
cause = ANY(%(by_exception)s) AND NOT is_shared_at_once
AND {_ANOTHER_LIVES} AND NOT {_ANOTHER_FAILED}
"""

# A message is shown as suspected while its skip is.
_SHOW = """
UPDATE poison_poison SET suspected = skip.is_suspected
FROM poison_skip skip
WHERE skip.poison_id = poison_poison.id AND skip.removed_revision IS NULL
  AND skip.is_automatic AND poison_poison.suspected <> skip.is_suspected
  AND poison_poison.id IN (SELECT poison_id FROM incoming WHERE status <> 'duplicate')
"""

# What is due, by topic, and whether its consumer is paused: that proves nothing.
_DUE = """
SELECT skip.topic_id, skip.id,
       EXISTS (SELECT FROM poison_failure failure JOIN capture_guard guard
               ON guard.topic_id = skip.topic_id
              AND guard.consumer_group = skip.consumer_group
              AND guard.client_name = failure.client_name
              AND guard.host IS NOT DISTINCT FROM failure.host
               WHERE failure.poison_id = skip.poison_id
                 AND guard.state = %(paused)s AND guard.heard_at > %(lives_since)s)
FROM poison_skip skip
WHERE skip.is_suspected AND skip.removed_revision IS NULL AND skip.firm_at <= %(now)s
ORDER BY skip.topic_id, skip.id LIMIT %(limit)s
"""

_POSTPONE = """
UPDATE poison_skip SET firm_at = %(firm_at)s
WHERE id = ANY(%(skips)s) AND is_suspected AND removed_revision IS NULL
"""

_FIRM = """
WITH due AS (
    SELECT id, row_number() OVER (ORDER BY id) AS place FROM (
        SELECT id FROM poison_skip WHERE topic_id = %(topic)s AND id = ANY(%(skips)s)
          AND is_suspected AND removed_revision IS NULL
        ORDER BY id FOR NO KEY UPDATE) locked
), firm AS (
    UPDATE poison_skip skip SET is_suspected = false, firm_at = NULL,
           revision = list.revision + due.place
    FROM due, poison_skip_list list
    WHERE skip.id = due.id AND list.topic_id = %(topic)s
    RETURNING skip.poison_id
), shown AS (
    UPDATE poison_poison SET suspected = false WHERE id IN (SELECT poison_id FROM firm)
)
UPDATE poison_skip_list list SET revision = list.revision + counted.number
FROM (SELECT count(*) AS number FROM due) counted
WHERE topic_id = %(topic)s AND counted.number > 0
RETURNING counted.number
"""

# Where two consumers failed, a third one that handled it proves nothing.
_BY_ONE_CONSUMER = """
SELECT skip.topic_id, skip.id, skip.poison_id, failing.client_name, failing.host
FROM poison_skip skip JOIN LATERAL (
    SELECT min(client_name) AS client_name, min(host) AS host FROM (
        SELECT DISTINCT failure.client_name, coalesce(failure.host, '') AS host
        FROM poison_failure failure WHERE failure.poison_id = skip.poison_id) consumers
    HAVING count(*) = 1) failing ON true
WHERE skip.is_automatic AND skip.removed_revision IS NULL
"""
_HANDLED = f"{_BY_ONE_CONSUMER} AND skip.id = ANY(%(skips)s) ORDER BY 1, 2"
_DOUBTED = f"""{_BY_ONE_CONSUMER} AND skip.topic_id = %(topic)s
  AND skip.consumer_group = %(group)s AND skip.at >= %(at_least)s
  AND failing.client_name = %(client)s AND failing.host = %(host)s
  AND EXISTS (
      SELECT FROM poison_failure failure WHERE failure.poison_id = skip.poison_id
        AND failure.cause = ANY(%(by_exception)s)
        AND coalesce(failure.failed_at_claimed, failure.failed_at) >= %(since)s)
ORDER BY 1, 2
"""

_SUSPECT = """
UPDATE poison_poison SET suspected = true WHERE id = ANY(%(poisons)s)
"""

_CONTRADICT = """
UPDATE capture_guard SET contradicted = contradicted + counted.number
FROM unnest(%(topics)s::int8[], %(clients)s::text[], %(hosts)s::text[],
            %(numbers)s::int8[]) AS counted(topic_id, client_name, host, number)
WHERE capture_guard.topic_id = counted.topic_id
  AND capture_guard.client_name = counted.client_name
  AND coalesce(capture_guard.host, '') = counted.host
  AND capture_guard.heard_at > %(lives_since)s
"""


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """A skip whose message one consumer alone failed on."""

    topic: int
    skip: int
    poison: int
    client_name: str
    host: str


def values(*, now: datetime) -> dict[str, Any]:
    """Give what `MAY_BE_ITS_CONSUMER` and the skips made by it are filled in with."""
    return {
        "by_exception": [Cause.FATAL.value, Cause.EXHAUSTED.value],
        "lives_since": now - LIVES,
        "stopping": GuardState.STOPPING.value,
        "firm_at": now + PATIENCE,
    }


def show(cursor: CursorWrapper) -> None:
    """Show the messages of a merge as suspected while their skips are."""
    cursor.execute(_SHOW)


def make_firm(*, now: datetime) -> int:
    """Share what nobody contradicted in time; give the number of those skips."""
    number = 0
    while due := _due(now=now):
        paused = [skip for _, skip, is_paused in due if is_paused]
        with connection.cursor() as cursor:
            cursor.execute(_POSTPONE, {"skips": paused, "firm_at": now + PATIENCE})
        ready = ((topic, skip) for topic, skip, is_paused in due if not is_paused)
        for topic, of_topic in groupby(ready, key=itemgetter(0)):
            number += _make_firm(topic, [skip for _, skip in of_topic])
    return number


@transaction.atomic
def _make_firm(topic_id: int, skips: Sequence[int]) -> int:
    skip_list.hold([topic_id])
    with connection.cursor() as cursor:
        cursor.execute(_FIRM, {"topic": topic_id, "skips": list(skips)})
        row = cursor.fetchone()
    notices.notify_skips(topic_id=topic_id)
    return row[0] if row else 0


def _due(*, now: datetime) -> list[tuple[int, int, bool]]:
    filled: dict[str, Any] = {
        "now": now,
        "limit": AT_ONCE,
        "paused": GuardState.PAUSED.value,
        "lives_since": now - LIVES,
    }
    with connection.cursor() as cursor:
        cursor.execute(_DUE, filled)
        return list(cursor.fetchall())


@transaction.atomic
def end_handled(*, skips: Sequence[int], principal: Principal, now: datetime) -> int:
    """End automatic skips of messages that another consumer says it handled.

    Those that people made stay, and so do those that two consumers failed on. Give the
    number of those that ended.
    """
    visible = Skip.objects.on_topics(principal.topics).filter(pk__in=skips)
    ids = list(visible.values_list("pk", flat=True))
    ended = _end(_doubtful(_HANDLED, {"skips": ids}), because=Because.HANDLED, now=now)
    _contradict(ended, now=now)
    return len(ended)


@transaction.atomic
def end_doubted(
    *,
    topic_id: int,
    consumer_group: str,
    client_name: str,
    host: str | None,
    since: datetime,
    now: datetime,
) -> int:
    """End the skips of a consumer that paused, of what failed there since then.

    `since` is by its clock. What kills or hangs it is no sign of sickness.
    """
    filled = {
        "topic": topic_id,
        "group": consumer_group,
        "client": client_name,
        "host": host or "",
        "since": since,
        "at_least": now - LONGEST_WINDOW,
        **values(now=now),
    }
    ended = _end(_doubtful(_DOUBTED, filled), because=Because.DOUBTED, now=now)
    if ended:
        log.warning(
            "%s on %s paused: %d skips of topic %d that only it had made were ended",
            *(client_name, host, len(ended), topic_id),
        )
    return len(ended)


def _doubtful(statement: str, filled: dict[str, Any]) -> list[_Doubtful]:
    with connection.cursor() as cursor:
        cursor.execute(statement, filled)
        return [_Doubtful(*row) for row in cursor.fetchall()]


def _end(
    skips: Sequence[_Doubtful], *, because: Because, now: datetime
) -> Sequence[_Doubtful]:
    for topic, of_topic in groupby(skips, key=lambda each: each.topic):
        skip_list.end(
            topic_id=topic,
            skips=[each.skip for each in of_topic],
            because=because,
            actor=ACTOR,
            now=now,
        )
    with connection.cursor() as cursor:
        cursor.execute(_SUSPECT, {"poisons": [each.poison for each in skips]})
    return skips


def _contradict(skips: Sequence[_Doubtful], *, now: datetime) -> None:
    """Count against a consumer what others handled, and show it as suspect."""
    counts = Counter((each.topic, each.client_name, each.host) for each in skips)
    with connection.cursor() as cursor:
        cursor.execute(
            _CONTRADICT,
            {
                "topics": [topic for topic, _, _ in counts],
                "clients": [client for _, client, _ in counts],
                "hosts": [host for _, _, host in counts],
                "numbers": list(counts.values()),
                "lives_since": now - LIVES,
            },
        )
    for (topic, client, host), number in counts.items():
        log.warning(
            "%s on %s failed on %d messages of topic %d that another consumer handled",
            *(client, host, number, topic),
        )
