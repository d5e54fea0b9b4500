"""How redrives begin, what becomes of them, and what that makes of their poisons.

All of them lock the poisons first, in id order, as capture does.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from apps.core.arrays import array
from apps.poison import tokens as token
from apps.poison.models import Redrive
from apps.poison.states import (
    SILENT_AFTER_SECONDS,
    Outcome,
    State,
    before,
    outcomes_before,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What became of one confirmation: confirmed, duplicate, or rejected and why."""

    status: str
    poison: int | None = None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What the broker said of one redrive."""

    redrive: uuid.UUID
    outcome: Outcome
    detail: str = ""
    bookmark: str = ""


def lock(poisons: Iterable[int]) -> None:
    """Lock these poisons until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM poison_poison WHERE id = ANY(%s::int8[]) ORDER BY id"
            " FOR NO KEY UPDATE",
            [array(poisons)],
        )


@transaction.atomic
def confirm(*, tokens: Sequence[tuple[str, str]], now: datetime) -> list[Verdict]:
    """Note that redriven messages were handled: (redrive header, topic) of each.

    A token that we did not sign for that topic is rejected. Idempotent.
    """
    ids = [token.redrive_of(text) for text, _ in tokens]
    known = {
        redrive.pk: redrive
        for redrive in Redrive.objects.filter(
            pk__in=[i for i in ids if i]
        ).select_related("poison", "topic")
    }
    genuine = {
        redrive
        for redrive, (text, topic) in zip(ids, tokens, strict=True)
        if redrive is not None
        and redrive in known
        and _is_genuine(known[redrive], text, topic)
    }
    lock(known[redrive].poison_id for redrive in genuine)
    changed = _confirm(list(genuine), now=now)
    return [_verdict(known, genuine, changed, redrive) for redrive in ids]


def _is_genuine(redrive: Redrive, text: str, topic: str) -> bool:
    return redrive.topic.name == topic and redrive.pk == token.verified(
        text, topic=topic, digest=redrive.poison.digest
    )


def _verdict(
    known: dict[uuid.UUID, Redrive],
    genuine: Collection[uuid.UUID],
    changed: set[uuid.UUID],
    redrive: uuid.UUID | None,
) -> Verdict:
    if redrive is None or redrive not in genuine:
        return Verdict(
            status="rejected",
            detail="this is no redrive of ours to this topic; send the header "
            "x-poisonweb-redrive as it came",
        )
    poison = known[redrive].poison_id
    if redrive in changed:
        # The next copy within this request is a duplicate.
        changed.discard(redrive)
        return Verdict(status="confirmed", poison=poison)
    outcome = known[redrive].outcome
    detail = None
    if outcome not in {*outcomes_before(Outcome.CONFIRMED), Outcome.CONFIRMED}:
        detail = f"nothing changed: this redrive is already {outcome}"
    return Verdict(status="duplicate", poison=poison, detail=detail)


# OFFSET 0: each poison is looked up by its id. With statistics from before the first
# redrive, a free planner compares all that are sent with each that is confirmed.
_CONFIRM = """
WITH heard AS (
    UPDATE poison_redrive SET outcome = 'confirmed', answered_at = %(now)s,
           confirmed_at = %(now)s, sent_at = coalesce(sent_at, %(now)s)
    WHERE id = ANY(%(ids)s) AND outcome = ANY(%(from)s)
    RETURNING id, poison_id, n, sent_at
), settled AS (
    UPDATE poison_poison SET state = 'confirmed', sent_at = heard.sent_at
    FROM heard, LATERAL (
        SELECT id, redrives, state FROM poison_poison
        WHERE id = heard.poison_id OFFSET 0
    ) known
    WHERE poison_poison.id = known.id AND known.redrives = heard.n
      AND known.state = ANY(%(settles)s)
)
SELECT id FROM heard
"""


def _confirm(ids: list[uuid.UUID], *, now: datetime) -> set[uuid.UUID]:
    with connection.cursor() as cursor:
        values: dict[str, Any] = {
            "ids": ids,
            "now": now,
            "from": outcomes_before(Outcome.CONFIRMED),
            "settles": before(State.CONFIRMED),
        }
        cursor.execute(_CONFIRM, values)
        return {redrive for (redrive,) in cursor.fetchall()}


_BEGIN = """
WITH claimed AS (
    UPDATE poison_poison SET state = 'redriving', redrives = redrives + 1
    WHERE id = ANY(%(poisons)s::int8[])
      AND state = ANY(%(from)s)
      AND (state <> 'redriven' OR sent_at < %(silent_before)s)
    RETURNING id, redrives, coalesce(%(target)s, topic_id) AS goes_to, digest
)
INSERT INTO poison_redrive (id, poison_id, n, topic_id, queue, digest, outcome, detail,
                            bookmark, epoch, copies, claimed_at)
SELECT gen_random_uuid(), id, redrives, goes_to, %(queue)s,
       CASE WHEN %(queue)s <> '' OR goes_to = ANY(%(unmarked)s) THEN digest END,
       'sending', '', '', %(epoch)s, 1, %(now)s
FROM claimed RETURNING poison_id, id
"""


def begin(
    *,
    poisons: Sequence[int],
    target: int | None,
    queue: str = "",
    unmarked: Collection[int] = (),
    epoch: int,
    now: datetime,
) -> dict[int, uuid.UUID]:
    """Claim what may be sent; give the new redrive of each poison that was.

    Open poisons may be sent, and sent ones that nobody has been heard of for long.
    `queue` is the dead-letter queue to which they are given back; `unmarked` are the
    topics whose messages cannot bear a redrive's mark. Call it inside a transaction.
    """
    lock(poisons)
    with connection.cursor() as cursor:
        cursor.execute(
            _BEGIN,
            {
                "poisons": array(poisons),
                "target": target,
                "queue": queue,
                "unmarked": list(unmarked),
                "epoch": epoch,
                "now": now,
                "from": before(State.REDRIVING),
                "silent_before": _silent_before(now),
            },
        )
        return dict(cursor.fetchall())


def _silent_before(now: datetime) -> datetime:
    return now - timedelta(seconds=SILENT_AFTER_SECONDS)


_TAKE_OVER = """
UPDATE poison_redrive SET outcome = 'sending', epoch = %(epoch)s, copies = copies + 1
WHERE id = ANY(%(ids)s) AND outcome IN ('sending', 'unknown')
RETURNING id
"""


def take_over(*, redrives: Sequence[uuid.UUID], epoch: int) -> set[uuid.UUID]:
    """Send these again under the ids that they have; give those still in flight."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE_OVER, {"ids": list(redrives), "epoch": epoch})
        return {redrive for (redrive,) in cursor.fetchall()}


# A consumer may have answered already: then its word stands, and only what is still in
# flight is marked. `moved`: sent elsewhere on purpose, so no answer is awaited.
_MARK = """
WITH told AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(outcomes)s::text[], %(details)s::text[],
                         %(bookmarks)s::text[]) AS told(id, outcome, detail, bookmark)
), marked AS (
    UPDATE poison_redrive SET outcome = told.outcome, detail = told.detail,
           bookmark = told.bookmark,
           sent_at = CASE WHEN told.outcome IN ('sent', 'moved') THEN %(now)s END
    FROM told WHERE poison_redrive.id = told.id
      AND poison_redrive.outcome IN ('sending', 'unknown')
      AND poison_redrive.epoch = %(epoch)s
    RETURNING poison_redrive.poison_id, poison_redrive.n, poison_redrive.outcome,
              poison_redrive.topic_id
)
UPDATE poison_poison SET
    state = CASE marked.outcome WHEN 'sent' THEN 'redriven' WHEN 'moved' THEN 'moved'
            ELSE 'open' END,
    sent_at = CASE WHEN marked.outcome IN ('sent', 'moved') THEN %(now)s
              ELSE poison_poison.sent_at END,
    moved_to_id = CASE WHEN marked.outcome = 'moved' THEN marked.topic_id END
FROM marked WHERE poison_poison.id = marked.poison_id
  AND poison_poison.redrives = marked.n AND poison_poison.state = 'redriving'
  AND marked.outcome <> 'unknown'
"""


def mark(
    *, poisons: Sequence[int], answers: Sequence[Answered], epoch: int, now: datetime
) -> None:
    """Write down what the broker said of redrives that this epoch sent.

    Call it inside a transaction.
    """
    lock(poisons)
    with connection.cursor() as cursor:
        cursor.execute(
            _MARK,
            {
                "ids": array(answer.redrive for answer in answers),
                "outcomes": array(answer.outcome for answer in answers),
                "details": [answer.detail for answer in answers],
                "bookmarks": [answer.bookmark for answer in answers],
                "epoch": epoch,
                "now": now,
            },
        )


# A send before this one may have been answered meanwhile, or may be answered later:
# its poison goes back to what that send says of it.
_WITHDRAW = """
WITH withdrawn AS (
    DELETE FROM poison_redrive
    WHERE id = ANY(%(ids)s::uuid[]) AND outcome = 'sending' AND copies = 1
      AND epoch = %(epoch)s
    RETURNING id, poison_id, n
), reverted AS (
    UPDATE poison_poison SET redrives = withdrawn.n - 1,
        state = CASE WHEN poison_poison.state = 'redriving' THEN coalesce(
            (SELECT CASE before.outcome WHEN 'sent' THEN 'redriven'
                                        WHEN 'confirmed' THEN 'confirmed' END
             FROM poison_redrive before
             WHERE before.poison_id = withdrawn.poison_id
               AND before.n = withdrawn.n - 1),
            'open') ELSE poison_poison.state END
    FROM withdrawn WHERE poison_poison.id = withdrawn.poison_id
      AND poison_poison.redrives = withdrawn.n
)
SELECT id FROM withdrawn
"""


def withdraw(
    *, poisons: Sequence[int], redrives: Sequence[uuid.UUID], epoch: int
) -> set[uuid.UUID]:
    """Undo claims of which nothing was sent; give those that were undone.

    A claim that was sent before, or that a consumer has answered, stands. Call it
    inside a transaction.
    """
    lock(poisons)
    with connection.cursor() as cursor:
        cursor.execute(_WITHDRAW, {"ids": array(redrives), "epoch": epoch})
        return {redrive for (redrive,) in cursor.fetchall()}


_DROP = """
UPDATE poison_poison SET state = 'dropped', dropped_at = %(now)s
WHERE id = ANY(%(poisons)s) AND state = ANY(%(from)s)
  AND (state <> 'redriven' OR sent_at < %(silent_before)s)
RETURNING id
"""

_RESTORE = """
UPDATE poison_poison SET state = 'open', dropped_at = NULL
WHERE id = ANY(%(poisons)s) AND state = 'dropped' RETURNING id
"""


def drop(*, poisons: Sequence[int], now: datetime) -> set[int]:
    """Drop those that may be dropped, and give them. Call it inside a transaction."""
    values = {
        "now": now,
        "from": before(State.DROPPED),
        "silent_before": _silent_before(now),
    }
    return _transition(_DROP, poisons, values)


def restore(*, poisons: Sequence[int]) -> set[int]:
    """Open those that are dropped, and give them. Call it inside a transaction."""
    return _transition(_RESTORE, poisons, {})


def _transition(
    statement: str, poisons: Sequence[int], values: dict[str, Any]
) -> set[int]:
    lock(poisons)
    with connection.cursor() as cursor:
        cursor.execute(statement, {**values, "poisons": list(poisons)})
        return {poison for (poison,) in cursor.fetchall()}
