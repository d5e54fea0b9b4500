"""Change the states of redrives and of their poisons.

Every function locks the poisons first, in id order, as capture does.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.core.arrays import array
from apps.poison import redrive_signatures as token
from apps.poison.models import Redrive
from apps.poison.states import (
    PoisonState,
    RedriveOutcome,
    before,
    outcomes_before,
    silent_before,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfirmationResult:
    """The result of a confirmation: confirmed, duplicate, or rejected with a reason."""

    status: str
    poison: int | None = None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RedriveAnswer:
    """The broker's answer to one redrive."""

    redrive: uuid.UUID
    outcome: RedriveOutcome
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
def confirm(
    *, tokens: Sequence[tuple[str, str]], now: datetime
) -> list[ConfirmationResult]:
    """Confirm redriven messages: `tokens` holds (redrive header, topic) of each.

    Reject a token that we did not sign for that topic. Idempotent.
    """
    ids = [token.redrive_of(text) for text, _ in tokens]
    redrives = {
        redrive.pk: redrive
        for redrive in Redrive.objects.filter(
            pk__in=[i for i in ids if i]
        ).select_related("poison", "topic")
    }
    genuine = {
        redrive
        for redrive, (text, topic) in zip(ids, tokens, strict=True)
        if redrive is not None
        and redrive in redrives
        and _is_genuine(redrives[redrive], text, topic)
    }
    lock(redrives[redrive].poison_id for redrive in genuine)
    changed = _confirm(list(genuine), now=now)
    return [_result_of_token(redrives, genuine, changed, redrive) for redrive in ids]


def _is_genuine(redrive: Redrive, text: str, topic: str) -> bool:
    """Tell whether we signed the token for this redrive, topic and body."""
    return redrive.topic.name == topic and redrive.pk == token.verified(
        text, topic=topic, digest=redrive.poison.digest
    )


def _result_of_token(
    redrives: dict[uuid.UUID, Redrive],
    genuine: Collection[uuid.UUID],
    changed: set[uuid.UUID],
    redrive: uuid.UUID | None,
) -> ConfirmationResult:
    """Return what became of one token; only its first use is `confirmed`."""
    if redrive is None or redrive not in genuine:
        return ConfirmationResult(
            status="rejected",
            detail="this is no redrive of ours to this topic; send the header "
            "x-poisonweb-redrive as it came",
        )
    poison = redrives[redrive].poison_id
    if redrive in changed:
        # A further copy within this request is a duplicate.
        changed.discard(redrive)
        return ConfirmationResult(status="confirmed", poison=poison)
    outcome = redrives[redrive].outcome
    detail = None
    if outcome not in {
        *outcomes_before(RedriveOutcome.CONFIRMED),
        RedriveOutcome.CONFIRMED,
    }:
        detail = f"nothing changed: this redrive is already {outcome}"
    return ConfirmationResult(status="duplicate", poison=poison, detail=detail)


# OFFSET 0 makes Postgres look up each poison by its id. With statistics from before the
# first redrive, the planner would compare all sent poisons with each confirmed one.
_CONFIRM = """
WITH confirmed AS (
    UPDATE poison_redrive SET outcome = 'confirmed', answered_at = %(now)s,
           confirmed_at = %(now)s, sent_at = coalesce(sent_at, %(now)s)
    WHERE id = ANY(%(ids)s) AND outcome = ANY(%(from)s)
    RETURNING id, poison_id, n, sent_at
), settled AS (
    UPDATE poison_poison SET state = 'confirmed', sent_at = confirmed.sent_at
    FROM confirmed, LATERAL (
        SELECT id, redrives, state FROM poison_poison
        WHERE id = confirmed.poison_id OFFSET 0
    ) known
    WHERE poison_poison.id = known.id AND known.redrives = confirmed.n
      AND known.state = ANY(%(settles)s)
)
SELECT id FROM confirmed
"""


def _confirm(ids: list[uuid.UUID], *, now: datetime) -> set[uuid.UUID]:
    """Set redrives to confirmed, if they may be; return those that changed."""
    with connection.cursor() as cursor:
        values: dict[str, Any] = {
            "ids": ids,
            "now": now,
            "from": outcomes_before(RedriveOutcome.CONFIRMED),
            "settles": before(PoisonState.CONFIRMED),
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
    """Claim poisons that may be sent, each with a new redrive; return their ids.

    Open poisons may be sent, and silent ones again. `queue` is the dead-letter queue to
    give them back to, or "". `unmarked` are the topics whose messages cannot carry a
    redrive's mark. Call it inside a transaction.
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
                "from": before(PoisonState.REDRIVING),
                "silent_before": silent_before(now),
            },
        )
        return dict(cursor.fetchall())


_TAKE_OVER = """
UPDATE poison_redrive SET outcome = 'sending', epoch = %(epoch)s, copies = copies + 1
WHERE id = ANY(%(ids)s) AND outcome IN ('sending', 'unknown')
RETURNING id
"""


def take_over(*, redrives: Sequence[uuid.UUID], epoch: int) -> set[uuid.UUID]:
    """Claim these redrives for this epoch; return those that are still in flight."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE_OVER, {"ids": list(redrives), "epoch": epoch})
        return {redrive for (redrive,) in cursor.fetchall()}


# Mark only redrives that are still in flight: a consumer may have answered already, and
# its answer stands. `moved`: sent to another topic on purpose, so no answer will come.
_MARK = """
WITH answers AS (
    SELECT * FROM unnest(%(ids)s::uuid[], %(outcomes)s::text[], %(details)s::text[],
                         %(bookmarks)s::text[]) AS one(id, outcome, detail, bookmark)
), marked AS (
    UPDATE poison_redrive SET outcome = answers.outcome, detail = answers.detail,
           bookmark = answers.bookmark,
           sent_at = CASE WHEN answers.outcome IN ('sent', 'moved') THEN %(now)s END
    FROM answers WHERE poison_redrive.id = answers.id
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
    *,
    poisons: Sequence[int],
    answers: Sequence[RedriveAnswer],
    epoch: int,
    now: datetime,
) -> None:
    """Store the broker's answers to redrives that this epoch sent.

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


# An earlier send may be answered already, or later: the poison goes back to the state
# of that send.
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
    """Undo claims that were not sent; return those that were undone.

    A claim that was sent before, or that a consumer has answered, stays. Call it inside
    a transaction.
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
    """Drop those that may be dropped; return them. Call it inside a transaction."""
    values = {
        "now": now,
        "from": before(PoisonState.DROPPED),
        "silent_before": silent_before(now),
    }
    return _transition(_DROP, poisons, values)


def restore(*, poisons: Sequence[int]) -> set[int]:
    """Open those that are dropped; return them. Call it inside a transaction."""
    return _transition(_RESTORE, poisons, {})


def _transition(
    statement: str, poisons: Sequence[int], values: dict[str, Any]
) -> set[int]:
    """Lock poisons and change their states by SQL; return those that changed."""
    lock(poisons)
    with connection.cursor() as cursor:
        cursor.execute(statement, {**values, "poisons": list(poisons)})
        return {poison for (poison,) in cursor.fetchall()}
