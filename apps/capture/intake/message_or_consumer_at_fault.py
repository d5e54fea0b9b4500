"""Suspected skips: is the message at fault, or its consumer? Other consumers show it.

When one consumer of a group fails on a message with an exception while another one is
alive, its skip is suspected: the other consumers still handle the message and report
it. Then the skip ends, and the first consumer is shown as suspect (`end_handled`). A
failure of a second consumer makes the skip firm at once, and so does `FIRM_AFTER`
without a report, unless the first consumer is paused by then. When a consumer pauses,
the skips end that it made of the messages which made it pause (`end_doubted`).

A consumer is a client name on a host: its processes share their faults.
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

from apps.core import notify_channel
from apps.core.actor import Actor
from apps.poison import skip_list_revisions
from apps.poison.models import Skip
from apps.poison.states import Because
from apps.team.rights import Principal
from poisonguard.contract import Cause, GuardState

log = logging.getLogger(__name__)

# Time for other consumers that receive the message later, or look up what they handled.
FIRM_AFTER = timedelta(seconds=60)
# After its last heartbeat a consumer counts as alive this long.
ALIVE_FOR = timedelta(minutes=3)
# No breaker looks further back than this; its window is five hundred messages.
LONGEST_WINDOW = timedelta(days=1)
BATCH_SIZE = 1_000
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
# A condition on a row of `incoming` whose failures are stored already.
MAY_BE_ITS_CONSUMER = f"""
cause = ANY(%(by_exception)s) AND NOT is_shared_at_once
AND {_ANOTHER_LIVES} AND NOT {_ANOTHER_FAILED}
"""

# A message is suspected while its skip is.
_UPDATE_POISONS = """
UPDATE poison_poison SET suspected = skip.is_suspected
FROM poison_skip skip
WHERE skip.poison_id = poison_poison.id AND skip.removed_revision IS NULL
  AND skip.is_automatic AND poison_poison.suspected <> skip.is_suspected
  AND poison_poison.id IN (SELECT poison_id FROM incoming WHERE status <> 'duplicate')
"""

# Skips that are due, by topic. A paused consumer proves nothing about its messages.
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

# Only if one consumer alone failed does another that handled the message prove it.
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
        AND coalesce(failure.failed_at_claimed, failure.last_failed_at,
                     failure.failed_at) >= %(since)s)
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
class _DoubtfulSkip:
    """A skip whose message only one consumer failed on."""

    topic: int
    skip: int
    poison: int
    client_name: str
    host: str


def query_parameters(*, now: datetime) -> dict[str, Any]:
    """Return the parameters of capture's SQL on suspected skips and their consumers."""
    return {
        "by_exception": [Cause.FATAL.value, Cause.EXHAUSTED.value],
        "lives_since": now - ALIVE_FOR,
        "stopping": GuardState.STOPPING.value,
        "firm_at": now + FIRM_AFTER,
    }


def update_poisons(cursor: CursorWrapper) -> None:
    """Mark the messages of a merge as suspected while their skips are suspected."""
    cursor.execute(_UPDATE_POISONS)


def make_firm(*, now: datetime) -> int:
    """Make suspected skips firm that no consumer contradicted in time; return how many.

    Skips of consumers that are paused wait for another term.
    """
    number = 0
    while due := _due_skips(now=now):
        paused = [skip for _, skip, is_paused in due if is_paused]
        with connection.cursor() as cursor:
            cursor.execute(_POSTPONE, {"skips": paused, "firm_at": now + FIRM_AFTER})
        ready = ((topic, skip) for topic, skip, is_paused in due if not is_paused)
        for topic, of_topic in groupby(ready, key=itemgetter(0)):
            number += _make_firm(topic, [skip for _, skip in of_topic])
    return number


@transaction.atomic
def _make_firm(topic_id: int, skips: Sequence[int]) -> int:
    """Make these suspected skips of a topic firm; NOTIFY guards; return how many."""
    skip_list_revisions.lock_lists([topic_id])
    with connection.cursor() as cursor:
        cursor.execute(_FIRM, {"topic": topic_id, "skips": list(skips)})
        row = cursor.fetchone()
    notify_channel.notify_skips(topic_id=topic_id)
    return row[0] if row else 0


def _due_skips(*, now: datetime) -> list[tuple[int, int, bool]]:
    """Select suspected skips that nothing contradicted for long enough, up to a limit.

    Returns (topic id, skip id, whether the consumer that failed is paused) of each.
    """
    params: dict[str, Any] = {
        "now": now,
        "limit": BATCH_SIZE,
        "paused": GuardState.PAUSED.value,
        "lives_since": now - ALIVE_FOR,
    }
    with connection.cursor() as cursor:
        cursor.execute(_DUE, params)
        return list(cursor.fetchall())


@transaction.atomic
def end_handled(*, skips: Sequence[int], principal: Principal, now: datetime) -> int:
    """End automatic skips whose message another consumer handled; return how many.

    Skips made by people stay, and so do skips whose message two consumers failed on.
    """
    visible = Skip.objects.on_topics(principal.topics).filter(pk__in=skips)
    ids = list(visible.values_list("pk", flat=True))
    ended = _end_skips(
        _doubtful_skips(_HANDLED, {"skips": ids}), because=Because.HANDLED, now=now
    )
    _count_contradictions(ended, now=now)
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
    """End skips of messages that only this consumer failed on; return how many.

    It ends automatic skips for failures since `since`, when its failures began, by the
    consumer's clock. Skips for crashes and hangs stay.
    """
    params = {
        "topic": topic_id,
        "group": consumer_group,
        "client": client_name,
        "host": host or "",
        "since": since,
        "at_least": now - LONGEST_WINDOW,
        **query_parameters(now=now),
    }
    ended = _end_skips(
        _doubtful_skips(_DOUBTED, params), because=Because.DOUBTED, now=now
    )
    if ended:
        log.warning(
            "%s on %s paused: %d skips of topic %d that only it had made were ended",
            *(client_name, host, len(ended), topic_id),
        )
    return len(ended)


def _doubtful_skips(statement: str, params: dict[str, Any]) -> list[_DoubtfulSkip]:
    """Query automatic skips of messages that only one consumer failed on.

    Returns each with its poison and that consumer.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return [_DoubtfulSkip(*row) for row in cursor.fetchall()]


def _end_skips(
    skips: Sequence[_DoubtfulSkip], *, because: Because, now: datetime
) -> Sequence[_DoubtfulSkip]:
    """End these skips, and mark their poisons as suspected; return the skips."""
    for topic, of_topic in groupby(skips, key=lambda row: row.topic):
        skip_list_revisions.end(
            topic_id=topic,
            skips=[row.skip for row in of_topic],
            because=because,
            actor=ACTOR,
            now=now,
        )
    with connection.cursor() as cursor:
        cursor.execute(_SUSPECT, {"poisons": [row.poison for row in skips]})
    return skips


def _count_contradictions(skips: Sequence[_DoubtfulSkip], *, now: datetime) -> None:
    """Add to each guard's row the ended skips of messages that it alone failed on.

    Another consumer handled these messages. Each consumer is named in a warning.
    """
    counts = Counter((row.topic, row.client_name, row.host) for row in skips)
    with connection.cursor() as cursor:
        cursor.execute(
            _CONTRADICT,
            {
                "topics": [topic for topic, _, _ in counts],
                "clients": [client for _, client, _ in counts],
                "hosts": [host for _, _, host in counts],
                "numbers": list(counts.values()),
                "lives_since": now - ALIVE_FOR,
            },
        )
    for (topic, client, host), number in counts.items():
        log.warning(
            "%s on %s failed on %d messages of topic %d that another consumer handled",
            *(client, host, number, topic),
        )
