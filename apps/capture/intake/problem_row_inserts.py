"""Find or insert the problems of failures, and note when each was seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.backends.utils import CursorWrapper

from apps.capture.intake.occurrence import Occurrence
from apps.core.text_cleaning import storable
from poisonguard.fingerprint import VERSION as CLASSIFIER

# Topic id, consumer group and fingerprint.
Key = tuple[int, str, bytes]

_FIND = """
SELECT known.id, key.number FROM
unnest(%(topics)s::int8[], %(groups)s::text[], %(fingerprints)s::bytea[])
WITH ORDINALITY AS key(topic_id, consumer_group, fingerprint, number)
CROSS JOIN LATERAL (
    SELECT id FROM poison_problem same
    WHERE same.topic_id = key.topic_id AND same.consumer_group = key.consumer_group
      AND same.fingerprint = key.fingerprint AND same.version = %(version)s
    OFFSET 0) known
"""

# In the order of their keys, as a merge inserts them: see there.
_INSERT = """
INSERT INTO poison_problem (topic_id, consumer_group, fingerprint, version, title,
                            summary, inputs, first_seen, last_seen)
SELECT topic_id, consumer_group, fingerprint, %(version)s, title, summary,
       ARRAY(SELECT value FROM jsonb_array_elements_text(inputs)
             WITH ORDINALITY AS part(value, place) ORDER BY place),
       failed_at, failed_at
FROM unnest(%(topics)s::int8[], %(groups)s::text[], %(fingerprints)s::bytea[],
            %(titles)s::text[], %(summaries)s::text[], %(inputs)s::jsonb[],
            %(failed)s::timestamptz[])
     AS missing(topic_id, consumer_group, fingerprint, title, summary, inputs,
                failed_at)
ORDER BY 1, 2, 3
ON CONFLICT (topic_id, consumer_group, fingerprint, version) DO NOTHING
"""

_SEEN = """
WITH locked AS (
    SELECT id FROM poison_problem WHERE id = ANY(%(problems)s)
    ORDER BY id FOR NO KEY UPDATE
), spans AS (
    SELECT * FROM unnest(%(problems)s::int8[], %(firsts)s::timestamptz[],
                         %(lasts)s::timestamptz[]) AS span(id, first, last)
)
UPDATE poison_problem SET first_seen = least(first_seen, spans.first),
       last_seen = greatest(last_seen, spans.last)
FROM locked JOIN spans USING (id) WHERE poison_problem.id = locked.id
"""


class Span(NamedTuple):
    """When a problem was seen, at first and at last, among some failures."""

    problem: int
    first: datetime
    last: datetime


def key_of(occurrence: Occurrence) -> Key:
    """Return the key that makes failures one problem, by the classifier's version."""
    return (
        occurrence.topic_id,
        occurrence.consumer_group,
        occurrence.fingerprint.digest,
    )


def ids_of(cursor: CursorWrapper, occurrences: Iterable[Occurrence]) -> dict[Key, int]:
    """Return the problem id of each key; insert problems that are missing.

    Call it inside a transaction that holds the topics.
    """
    oldest: dict[Key, Occurrence] = {}
    for occurrence in occurrences:
        key = key_of(occurrence)
        other = oldest.get(key)
        if other is None or occurrence.failed_at < other.failed_at:
            oldest[key] = occurrence
    ids = _find(cursor, list(oldest))
    missing = [oldest[key] for key in oldest.keys() - ids.keys()]
    if missing:
        _insert(cursor, missing)
        ids |= _find(cursor, [key_of(occurrence) for occurrence in missing])
    return ids


def span_of_each_problem(spans: Iterable[Span]) -> list[Span]:
    """Join a capture's time spans of each problem to one, from first to last."""
    whole: dict[int, Span] = {}
    for problem, first, last in spans:
        span = whole.get(problem)
        if span is None:
            whole[problem] = Span(problem, first, last)
        elif first < span.first or last > span.last:
            firsts, lasts = (first, span.first), (last, span.last)
            whole[problem] = Span(problem, min(firsts), max(lasts))
    return list(whole.values())


def note_seen(cursor: CursorWrapper, spans: Sequence[Span]) -> None:
    """Widen problems' first and last times; call it after whatever locks messages."""
    if not spans:
        return
    values: dict[str, Any] = {
        "problems": [span.problem for span in spans],
        "firsts": [span.first for span in spans],
        "lasts": [span.last for span in spans],
    }
    cursor.execute(_SEEN, values)


def _find(cursor: CursorWrapper, keys: Sequence[Key]) -> dict[Key, int]:
    """Look up problems by their keys; return the problem id of each key."""
    cursor.execute(_FIND, _columns(keys))
    return {keys[number - 1]: problem for problem, number in cursor.fetchall()}


def _insert(cursor: CursorWrapper, occurrences: Sequence[Occurrence]) -> None:
    """Insert the problems of these failures, unless another transaction just did."""
    values: dict[str, Any] = {
        **_columns([key_of(occurrence) for occurrence in occurrences]),
        "titles": [storable(each.fingerprint.title) for each in occurrences],
        "summaries": [storable(each.fingerprint.summary) for each in occurrences],
        "inputs": [
            json.dumps([storable(part) for part in each.fingerprint.inputs])
            for each in occurrences
        ],
        "failed": [each.failed_at for each in occurrences],
    }
    cursor.execute(_INSERT, values)


def _columns(keys: Sequence[Key]) -> dict[str, Any]:
    """Return problem keys as the arrays that the statements take."""
    return {
        "topics": [topic for topic, _, _ in keys],
        "groups": [group for _, group, _ in keys],
        "fingerprints": [digest for _, _, digest in keys],
        "version": CLASSIFIER,
    }
