"""Store the first failures of messages, without a merge.

Most failures are the first of their message. After one look-up their rows go straight
into their tables, with their final values and with ids taken from the sequence. Any
other failure takes the merge, in the same transaction; and so does the whole batch
where the merge would have to insert a message: the messages of a transaction are
inserted in the order of their identities, and never in two turns.

Another transaction may insert the same message between our look-up and our rows. Then
the unique index refuses them, and the whole batch takes the merge in a second try.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.backends.utils import CursorWrapper

from apps.capture.intake import new_message_rows
from apps.capture.intake import problem_row_inserts as problems
from apps.capture.intake.new_message_rows import NewMessage, needs_merge
from apps.capture.intake.occurrence import Occurrence
from apps.capture.intake.problem_row_inserts import Span
from apps.capture.intake.staged_occurrences_merge import merge
from apps.core.arrays import array, hex_array
from apps.core.copy_rows import copy_rows

# Letters may be messages that were sent without a mark, or are being sent just now.
_MAY_BE_SENT = """
WITH letters AS (
    SELECT topic_id, decode(digest, 'hex') AS digest
    FROM unnest(%(topics)s::int8[], %(digests)s::text[]) AS letter(topic_id, digest)
), sent AS (
    SELECT FROM letters CROSS JOIN LATERAL (
        SELECT FROM poison_redrive sent
        WHERE sent.topic_id = letters.topic_id AND sent.digest = letters.digest
        LIMIT 1) sent
    LIMIT 1
), sending AS (
    SELECT FROM poison_window own
    JOIN poison_hold hold ON hold.operation = own.operation
         AND hold.item >= own.first AND hold.item < own.sending_to
    JOIN poison_poison poison ON poison.id = hold.poison_id
    WHERE own.state = 'sending'
      AND (hold.topic_id, poison.digest) IN (SELECT topic_id, digest FROM letters)
    LIMIT 1
)
SELECT EXISTS (SELECT FROM sent) OR EXISTS (SELECT FROM sending)
"""

# OFFSET 0 makes Postgres look each identity up in the index, whatever it takes the
# number of rows for.
_FIND = """
WITH rows AS (
    SELECT place, decode(identity, 'hex') AS identity, decode(digest, 'hex') AS digest
    FROM unnest(%(places)s::int4[], %(identities)s::text[], %(digests)s::text[])
         AS row(place, identity, digest)
)
SELECT place, CASE WHEN known.digest = rows.digest THEN id END
FROM rows CROSS JOIN LATERAL (
    SELECT id, digest FROM poison_poison WHERE identity = rows.identity OFFSET 0) known
UNION ALL
SELECT place, CASE WHEN known.digest = rows.digest THEN id END
FROM rows CROSS JOIN LATERAL (
    SELECT poison_id FROM poison_alias WHERE identity = rows.identity OFFSET 0) alias
CROSS JOIN LATERAL (
    SELECT id, digest FROM poison_poison WHERE id = alias.poison_id OFFSET 0) known
"""

# A suspected failure may be cleared by its copy: the merge does that.
_STORED = """
SELECT count(*) FROM unnest(%(reports)s::uuid[], %(poisons)s::int8[])
                     AS again(report_id, poison_id)
CROSS JOIN LATERAL (
    SELECT FROM poison_failure stored
    WHERE stored.report_id = again.report_id AND stored.poison_id = again.poison_id
      AND NOT stored.suspected
    LIMIT 1) stored
"""

# Postgres looks each sequence up once, and not for each number.
_IDS = """
SELECT is_failure, nextval(name) FROM (VALUES
    (false, pg_get_serial_sequence('poison_poison', 'id')::regclass, %s),
    (true, pg_get_serial_sequence('poison_failure', 'id')::regclass, %s)
) AS sequence(is_failure, name, number), generate_series(1, number)
"""


def write(
    cursor: CursorWrapper, occurrences: Sequence[Occurrence], *, now: datetime
) -> list[tuple[str, int]]:
    """Store captured failures, the first of a message without a merge.

    Returns (status, poison id) of each. It stores what `merge` would, inside the
    caller's transaction. Raises IntegrityError where another transaction has inserted
    one of the messages meanwhile.
    """
    first = _first_of_each(occurrences)
    if not first or _may_be_sent(cursor, occurrences):
        return merge(cursor, occurrences, now=now)
    poison_at = _find_poisons(cursor, occurrences, list(first.values()))
    if None in poison_at.values():
        return merge(cursor, occurrences, now=now)
    places = [place for place in first.values() if place not in poison_at]
    if places:
        return _write(cursor, occurrences, places, now=now)
    poisons = [poison_at[first[each.identity]] or 0 for each in occurrences]
    if _are_stored(cursor, occurrences, poisons):
        return [("duplicate", poison) for poison in poisons]
    return merge(cursor, occurrences, now=now)


def _write(
    cursor: CursorWrapper,
    occurrences: Sequence[Occurrence],
    places: Sequence[int],
    *,
    now: datetime,
) -> list[tuple[str, int]]:
    """Insert the failures at `places` with their new messages; merge all the others.

    Returns (status, poison id) of each failure, in order.
    """
    problem_ids = problems.ids_of(cursor, occurrences)
    # Failures of all, so that their order is that of the reports.
    poisons, failures = _take_ids(cursor, len(places), len(occurrences))
    new = [
        NewMessage(
            place=place,
            poison=poison,
            problem=problem_ids[problems.key_of(occurrences[place])],
            failure=failures[place],
            occurrence=occurrences[place],
        )
        for place, poison in zip(places, poisons, strict=True)
    ]
    _insert(cursor, new, now=now)
    answers = {each.place: ("created", each.poison) for each in new}
    spans = problems.span_of_each_problem(map(_span, new))
    others = [place for place in range(len(occurrences)) if place not in answers]
    if others:
        merged = merge(
            cursor,
            [occurrences[place] for place in others],
            failure_ids=[failures[place] for place in others],
            spans=spans,
            now=now,
        )
        answers.update(zip(others, merged, strict=True))
    else:
        problems.note_seen(cursor, spans)
    return [answers[place] for place in range(len(occurrences))]


def _span(new: NewMessage) -> Span:
    """Return the time span of a new message's problem: the moment of its failure."""
    return Span(new.problem, new.occurrence.failed_at, new.occurrence.failed_at)


def _first_of_each(occurrences: Sequence[Occurrence]) -> dict[bytes, int]:
    """Map each message's identity to its first place; {} where all must be merged."""
    if any(map(needs_merge, occurrences)):
        return {}
    first: dict[bytes, int] = {}
    for place, occurrence in enumerate(occurrences):
        same = first.setdefault(occurrence.identity, place)
        if occurrences[same].digest != occurrence.digest:
            return {}  # two messages of one identity: the merge numbers them
    return first


def _may_be_sent(cursor: CursorWrapper, occurrences: Sequence[Occurrence]) -> bool:
    """Tell whether any of these dead letters may be a redriven message that came back.

    That is so if its body equals one that was sent to the topic, or is being sent now.
    """
    letters = [occurrence for occurrence in occurrences if occurrence.queue]
    if not letters:
        return False
    values = {
        "topics": array(letter.topic_id for letter in letters),
        "digests": hex_array(letter.digest for letter in letters),
    }
    cursor.execute(_MAY_BE_SENT, values)
    (may_be_sent,) = cursor.fetchone()
    return bool(may_be_sent)


def _find_poisons(
    cursor: CursorWrapper, occurrences: Sequence[Occurrence], places: Sequence[int]
) -> dict[int, int | None]:
    """Look up the messages of captured failures at these places in their batch.

    Returns the poison id of each known one, by place; None stands for one that has the
    same identity, but another body.
    """
    rows = [occurrences[place] for place in places]
    values = {
        "places": array(places),
        "identities": hex_array(row.identity for row in rows),
        "digests": hex_array(row.digest for row in rows),
    }
    cursor.execute(_FIND, values)
    poison_at: dict[int, int | None] = {}
    for place, poison in cursor.fetchall():
        poison_at[place] = poison_at.get(place) or poison
    return poison_at


def _are_stored(
    cursor: CursorWrapper,
    occurrences: Sequence[Occurrence],
    poisons: Sequence[int],
) -> bool:
    """Tell whether all these reports of known poisons are stored already.

    Looks for the first one only, unless that is: reports are sent again together. A
    report that is not stored when we look may be a moment later, so ask a merge.
    """
    if any(occurrence.delivery for occurrence in occurrences):
        return False
    for number in (1, len(occurrences)):
        values = {
            "reports": array(each.report_id for each in occurrences[:number]),
            "poisons": array(poisons[:number]),
        }
        cursor.execute(_STORED, values)
        if cursor.fetchone() != (number,):
            return False
    return True


def _take_ids(
    cursor: CursorWrapper, poisons: int, failures: int
) -> tuple[list[int], list[int]]:
    """Take ids for so many poisons and failures from their tables' sequences."""
    cursor.execute(_IDS, [poisons, failures])
    ids = cursor.fetchall()
    return (
        sorted(pk for is_failure, pk in ids if not is_failure),
        sorted(pk for is_failure, pk in ids if is_failure),
    )


def _insert(cursor: CursorWrapper, new: Sequence[NewMessage], *, now: datetime) -> None:
    """Insert poisons, bodies, failures and what identifies unnamed letters.

    The poisons go in the order of their identities, as those of a merge do.
    """
    by_identity = sorted(new, key=lambda each: each.occurrence.identity)
    poisons = (new_message_rows.poison_row(each, now) for each in by_identity)
    copy_rows(cursor, "poison_poison", new_message_rows.POISON_COLUMNS, poisons)
    day = now.date()
    bodies = (new_message_rows.body_row(each, day) for each in new)
    copy_rows(cursor, "poison_body", new_message_rows.BODY_COLUMNS, bodies)
    failures = (new_message_rows.failure_row(each, now, day) for each in new)
    copy_rows(cursor, "poison_failure", new_message_rows.FAILURE_COLUMNS, failures)
    nameless = [each for each in new if each.occurrence.delivery is not None]
    if nameless:
        deliveries = (new_message_rows.delivery_row(each, now) for each in nameless)
        copy_rows(
            cursor, "capture_delivery", new_message_rows.DELIVERY_COLUMNS, deliveries
        )
