"""Merge many occurrences into the record at once.

The rows are staged (`staging`) and merged by a dozen statements, however many they are.
Each statement sees what others committed before it, so the order matters:

1. Insert the problems.
2. Find or insert the poison of each row: by its redrive (a letter without a mark is
   matched to one), else by its identity.
3. Lock the poisons.
4. Now that they are locked, tell new reports from duplicates.
5. Write what follows from the new reports.
6. Make skips where the broker would deliver the message again. Their lists are locked
   after everything else.

New rows are inserted in key order and existing ones locked in id order, after all
inserts: two merges can wait for one another, but never in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.backends.utils import CursorWrapper

from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.intake import (
    automatic_skips,
    repeat_folding,
    staging,
    unmarked_dead_letters,
)
from apps.capture.intake import problem_row_inserts as problems
from apps.capture.intake.occurrence import Occurrence
from apps.capture.intake.problem_row_inserts import Span
from apps.poison.services import operation_item_window_counts, sends
from apps.poison.services.operation_item_window_counts import Change
from apps.poison.services.sends import UnrecordedSend
from apps.poison.states import (
    REOPENED_BY_FAILURE,
    PoisonState,
    RedriveOutcome,
    outcomes_before,
)

# A round leaves only rows whose identity another merge inserted at the same time.
_MOST_ROUNDS = 20

_PROBLEMS = """
INSERT INTO poison_problem (topic_id, consumer_group, fingerprint, version, title,
                            summary, inputs, first_seen, last_seen)
SELECT DISTINCT ON (topic_id, consumer_group, fingerprint, version)
       topic_id, consumer_group, fingerprint, version, title, summary, inputs,
       failed_at, failed_at
FROM incoming ORDER BY topic_id, consumer_group, fingerprint, version, failed_at
ON CONFLICT (topic_id, consumer_group, fingerprint, version) DO NOTHING
"""

_FIND_PROBLEMS = """
UPDATE incoming SET problem_id = known.id FROM poison_problem known
WHERE known.topic_id = incoming.topic_id
  AND known.consumer_group = incoming.consumer_group
  AND known.fingerprint = incoming.fingerprint AND known.version = incoming.version
"""

_FIND_BY_REDRIVE = """
UPDATE incoming SET poison_id = known.poison_id FROM poison_redrive known
WHERE known.id = incoming.redrive
"""

# Of messages that were sent, but whose sends are not recorded yet.
_FIND_BY_UNRECORDED_SEND = """
UPDATE incoming SET poison_id = sent.poison
FROM unnest(%(early_ids)s::uuid[], %(early_poisons)s::int8[]) AS sent(id, poison)
WHERE incoming.redrive = sent.id AND incoming.poison_id IS NULL
"""

_FIND_BY_IDENTITY = """
UPDATE incoming SET poison_id = known.id FROM poison_poison known
WHERE incoming.poison_id IS NULL
  AND known.identity = incoming.identity AND known.digest = incoming.digest
"""

_FIND_BY_ALIAS = """
UPDATE incoming SET poison_id = known.id
FROM poison_alias alias JOIN poison_poison known ON known.id = alias.poison_id
WHERE incoming.poison_id IS NULL
  AND alias.identity = incoming.identity AND known.digest = incoming.digest
"""

# The same identity with another body is another poison, under the next reuse number.
# NOT EXISTS: another merge may have inserted it since we looked.
_INSERT_POISONS = """
INSERT INTO poison_poison (identity, reuse, topic_id, consumer_group, bookmark,
    message_id, problem_id, state, cause, error_type, error_message, size, digest,
    failures, attempts, crashes, redrives, recurrences, suspected,
    first_failed_at, last_failed_at, captured_at)
SELECT missing.identity,
       (SELECT coalesce(max(older.reuse) + 1, 0) FROM poison_poison older
        WHERE older.identity = missing.identity)
       + row_number() OVER (PARTITION BY missing.identity ORDER BY missing.ord) - 1,
       topic_id, consumer_group, bookmark, message_id, problem_id, 'open', cause,
       error_type, error_line, size, digest, 0, 0, 0, 0, 0, suspected,
       failed_at, failed_at, %(now)s
FROM (SELECT DISTINCT ON (identity, digest) * FROM incoming
      WHERE poison_id IS NULL ORDER BY identity, digest, ord) missing
WHERE NOT EXISTS (SELECT FROM poison_poison known
                  WHERE known.identity = missing.identity
                    AND known.digest = missing.digest)
ORDER BY 1, 2
ON CONFLICT (identity, reuse) DO NOTHING
RETURNING id
"""

_LOCK = """
SELECT id, failures FROM poison_poison WHERE id IN (SELECT poison_id FROM incoming)
ORDER BY id FOR NO KEY UPDATE
"""

_FIND_DUPLICATES = """
UPDATE incoming SET status = 'duplicate' FROM (
    SELECT again.ord FROM incoming again JOIN poison_failure failure
    ON failure.report_id = again.report_id AND failure.poison_id = again.poison_id
    UNION
    SELECT ord FROM (
        SELECT ord, row_number() OVER (PARTITION BY poison_id, report_id ORDER BY ord)
               AS turn FROM incoming) twice
    WHERE turn > 1
) known
WHERE known.ord = incoming.ord
"""

# Of copies of one report, one without a suspicion clears the others.
_TRUST = """
UPDATE incoming SET suspected = false FROM incoming later
WHERE incoming.suspected AND NOT later.suspected
  AND later.report_id = incoming.report_id AND later.poison_id = incoming.poison_id
"""

# The same failure was reported as suspected before, and no longer is.
_FIND_CLEARED = """
WITH believed AS (
    UPDATE poison_failure SET suspected = false FROM incoming
    WHERE incoming.status = 'duplicate' AND NOT incoming.suspected
      AND poison_failure.poison_id = incoming.poison_id
      AND poison_failure.report_id = incoming.report_id AND poison_failure.suspected
    RETURNING poison_failure.poison_id, poison_failure.report_id
), first AS (
    SELECT min(incoming.ord) AS ord FROM incoming JOIN believed
    USING (poison_id, report_id) GROUP BY poison_id, report_id
)
UPDATE incoming SET status = 'cleared' FROM first WHERE incoming.ord = first.ord
"""

_CLEAR = """
UPDATE poison_poison SET suspected = false
WHERE id IN (SELECT poison_id FROM incoming WHERE status = 'cleared')
"""

# Each row has a new poison of its own, which no other transaction sees yet.
_MARK_ALL_CREATED = "UPDATE incoming SET status = 'created'"

_MARK = """
UPDATE incoming SET status = CASE WHEN ord IN (
    SELECT min(ord) FROM incoming
    WHERE poison_id = ANY(%(created)s) GROUP BY poison_id
) THEN 'created' ELSE 'updated' END
WHERE status IS NULL
"""

_INSERT_BODIES = """
INSERT INTO poison_body (day, poison_id, content, headers, content_type)
SELECT %(day)s, poison_id, content, headers, content_type FROM incoming
WHERE status = 'created'
"""

# The caller may have taken their ids. Others may stand for some: see `repeat_folding`.
_INSERT_FAILURES = """
INSERT INTO poison_failure ({id} day, poison_id, problem_id, report_id, is_first,
    redrive, bookmark, cause, error_type, error_message, traceback, client_name, sub_id,
    host, handler_version, attempts, failures, crashes, dequeue_count,
    dequeue_count_source, first_failed_at, failed_at, failed_at_claimed, suspected,
    ambiguous, captured_at, folds, last_failed_at)
SELECT {taken} %(day)s, poison_id, problem_id, report_id, status = 'created',
    redrive, bookmark, cause, error_type, error_message, traceback, client_name, sub_id,
    host, handler_version, attempts, failures, crashes, dequeue_count,
    dequeue_count_source, first_failed_at, failed_at, failed_at_claimed, suspected,
    ambiguous, %(now)s, is_last, CASE WHEN is_last THEN failed_at END
FROM incoming WHERE status IN ('created', 'updated') AND NOT is_folded ORDER BY ord
"""

# A consumer's failure proves that the broker had the message, even if we did not
# record the send yet.
_RECUR = """
WITH recurred AS (
    UPDATE poison_redrive SET outcome = 'recurred', answered_at = %(now)s,
           sent_at = coalesce(sent_at, %(now)s)
    WHERE id IN (SELECT redrive FROM incoming WHERE status IN ('created', 'updated'))
      AND outcome = ANY(%(may_recur)s)
    RETURNING id, operation, item
)
SELECT recurred.id, recurred.operation, recurred.item, known.outcome
FROM recurred JOIN poison_redrive known USING (id)
"""

_APPLY = """
WITH totals AS (
    SELECT poison_id, count(*) AS number, sum(attempts) AS attempts,
           sum(crashes) AS crashes, min(first_failed_at) AS first_failed_at,
           max(failed_at) AS failed_at, bool_and(suspected) AS suspected
    FROM incoming WHERE status IN ('created', 'updated') GROUP BY poison_id
), newest AS (
    SELECT DISTINCT ON (poison_id) poison_id, problem_id, cause, error_type, error_line
    FROM incoming WHERE status IN ('created', 'updated')
    ORDER BY poison_id, failed_at DESC, ord DESC
), back AS (
    -- A message that was given back did not fail again: no consumer had it.
    SELECT poison_id, count(*) FILTER (WHERE queue = '') AS number, max(n) AS n
    FROM poison_redrive
    WHERE id = ANY(%(recurred)s) GROUP BY poison_id
), judged AS (
    SELECT known.id, totals.number, totals.attempts, totals.crashes,
           totals.first_failed_at, totals.failed_at, totals.suspected,
           newest.problem_id, newest.cause, newest.error_type, newest.error_line,
           coalesce(back.number, 0) AS recurrences,
           totals.failed_at >= known.last_failed_at OR known.failures = 0 AS is_newest,
           known.state = ANY(%(reopened)s)
           AND (back.n = known.redrives
                OR known.state = 'confirmed' AND totals.failed_at > (
                    SELECT answered_at FROM poison_redrive latest
                    WHERE latest.poison_id = known.id AND latest.n = known.redrives)
               ) IS TRUE AS reopens
    FROM totals JOIN newest USING (poison_id) LEFT JOIN back USING (poison_id)
    JOIN poison_poison known ON known.id = totals.poison_id
)
UPDATE poison_poison SET
    failures = poison_poison.failures + judged.number,
    attempts = least(poison_poison.attempts + judged.attempts, %(most)s),
    crashes = least(poison_poison.crashes + judged.crashes, %(most)s),
    recurrences = poison_poison.recurrences + judged.recurrences,
    first_failed_at = least(poison_poison.first_failed_at, judged.first_failed_at),
    last_failed_at = greatest(poison_poison.last_failed_at, judged.failed_at),
    problem_id = CASE WHEN is_newest THEN judged.problem_id
                 ELSE poison_poison.problem_id END,
    cause = CASE WHEN is_newest THEN judged.cause ELSE poison_poison.cause END,
    error_type = CASE WHEN is_newest THEN judged.error_type
                 ELSE poison_poison.error_type END,
    error_message = CASE WHEN is_newest THEN judged.error_line
                    ELSE poison_poison.error_message END,
    suspected = poison_poison.suspected AND judged.suspected,
    state = CASE WHEN reopens THEN %(open)s ELSE poison_poison.state END,
    moved_to_id = CASE WHEN reopens THEN NULL ELSE poison_poison.moved_to_id END
FROM judged WHERE poison_poison.id = judged.id
"""

_INSERT_ALIASES = """
INSERT INTO poison_alias (identity, poison_id, bookmark)
SELECT DISTINCT ON (incoming.identity)
       incoming.identity, incoming.poison_id, incoming.bookmark
FROM incoming JOIN poison_poison known ON known.id = incoming.poison_id
WHERE incoming.redrive IS NOT NULL AND incoming.identity <> known.identity
ORDER BY incoming.identity
ON CONFLICT (identity) DO NOTHING
"""

_SPANS = """
SELECT problem_id, min(failed_at), max(failed_at) FROM incoming
WHERE status IN ('created', 'updated') GROUP BY problem_id
"""

_INSERT_DELIVERIES = """
INSERT INTO capture_delivery (report_id, topic_id, digest, captured_at)
SELECT report_id, topic_id, delivery, %(now)s FROM incoming WHERE delivery IS NOT NULL
"""

_ANSWERS = """
SELECT CASE status WHEN 'cleared' THEN 'updated' ELSE status END, poison_id
FROM incoming ORDER BY ord
"""


def merge(
    cursor: CursorWrapper,
    occurrences: Sequence[Occurrence],
    *,
    failure_ids: Sequence[int] = (),
    spans: Sequence[Span] = (),
    now: datetime,
) -> list[tuple[str, int]]:
    """Store failures; return (status, poison id) of each, in order.

    The status is created, updated or duplicate. Runs inside the caller's transaction.
    A caller may have taken ids for the failures, and have seen problems itself: those
    `spans` are noted together with ours, in one order.
    """
    merging = _Merge(cursor, occurrences, spans=spans, now=now)
    merging.values["failure_ids"] = list(failure_ids)
    return merging.run()


class _Merge:
    """One merge, step by step; skips statements that cannot match a row."""

    def __init__(
        self,
        cursor: CursorWrapper,
        occurrences: Sequence[Occurrence],
        *,
        spans: Sequence[Span],
        now: datetime,
    ) -> None:
        self.cursor = cursor
        self.spans = spans
        self.number = len(occurrences)
        self.has_redriven = any(occurrence.redrive for occurrence in occurrences)
        self.has_replayed = any(occurrence.replays for occurrence in occurrences)
        self.has_suspected = any(occurrence.suspected for occurrence in occurrences)
        self.has_letter = any(occurrence.queue for occurrence in occurrences)
        self.has_nameless = any(occurrence.delivery for occurrence in occurrences)
        self.values: dict[str, Any] = {
            "now": now,
            "day": now.date(),
            "open": PoisonState.OPEN.value,
            "most": 2**31 - 1,
            "may_recur": outcomes_before(RedriveOutcome.RECURRED),
            "reopened": REOPENED_BY_FAILURE,
            "created": [],
            "frequent": [],
            "recurred": [],
        }
        self.early: list[UnrecordedSend] = []
        self.changes: list[Change] = []
        staging.stage(cursor, occurrences)

    def run(self) -> list[tuple[str, int]]:
        """Store the staged failures; return (status, poison id) of each, in order."""
        self._find_problems()
        self._find_poisons()
        self._mark_rows()
        self._write()
        self._execute(_ANSWERS)
        return list(self.cursor.fetchall())

    def _execute(self, statement: str) -> int:
        """Execute a statement of capture's merge; return how many rows it touched."""
        self.cursor.execute(statement, self.values)
        return int(self.cursor.rowcount)

    def _find_problems(self) -> None:
        """Set the problem of every staged failure; insert problems that are missing."""
        if self._execute(_FIND_PROBLEMS) < self.number:
            self._execute(_PROBLEMS)
            self._execute(_FIND_PROBLEMS)

    def _find_poisons(self) -> None:
        """Set the poison of every staged failure; insert poisons that are missing."""
        missing = self.number
        if self.has_letter:
            matched = unmarked_dead_letters.match(self.cursor, now=self.values["now"])
            self.has_redriven = matched or self.has_redriven
        if self.has_redriven:
            missing -= self._execute(_FIND_BY_REDRIVE)
            missing -= self._find_by_unrecorded_send() if missing else 0
        for _ in range(_MOST_ROUNDS):
            missing -= self._execute(_FIND_BY_IDENTITY)
            missing -= self._execute(_FIND_BY_ALIAS) if missing else 0
            if not missing:
                return
            self._execute(_INSERT_POISONS)
            self.values["created"] += [pk for (pk,) in self.cursor.fetchall()]
        raise RuntimeError("other merges kept taking the same identities")

    def _find_by_unrecorded_send(self) -> int:
        """Find the poisons of staged failures by redrives not recorded as sent yet.

        Returns for how many failures.
        """
        self._execute(
            "SELECT redrive FROM incoming"
            " WHERE redrive IS NOT NULL AND poison_id IS NULL"
        )
        ids = {redrive for (redrive,) in self.cursor.fetchall()}
        self.early = list(sends.unrecorded_sends(ids).values()) if ids else []
        if not ids:
            return 0
        self.values["early_ids"] = [send.redrive for send in self.early]
        self.values["early_poisons"] = [send.poison for send in self.early]
        # Of a send that was recorded between these two, the second finds the poison.
        return self._execute(_FIND_BY_UNRECORDED_SEND) + self._execute(
            f"{_FIND_BY_REDRIVE} AND incoming.poison_id IS NULL"
        )

    def _mark_rows(self) -> None:
        """Mark each staged failure as created, updated, duplicate or cleared."""
        if len(self.values["created"]) == self.number:
            self._execute(_MARK_ALL_CREATED)
            return
        self._execute(_LOCK)
        self.values["frequent"] = [
            poison
            for poison, failures in self.cursor.fetchall()
            if failures + self.number > repeat_folding.MOST_SINGLE
        ]
        if self.early:
            self.changes = sends.record_early(
                self.early,
                unmarked=brokers.topics_without_headers(),
                now=self.values["now"],
            )
        if self.has_suspected:
            self._execute(_TRUST)
        if self._execute(_FIND_DUPLICATES) and self._execute(_FIND_CLEARED):
            self._execute(_CLEAR)
        if self.values["frequent"]:
            repeat_folding.find_duplicates(self.cursor, self.values)
        self._execute(_MARK)

    def _recur(self) -> None:
        """Record that redriven messages failed again, and count the recurrences."""
        self._execute(_RECUR)
        rows = self.cursor.fetchall()
        self.values["recurred"] = [redrive for redrive, *_ in rows]
        operation_item_window_counts.count(
            [
                *self.changes,
                # The statement still sees the outcome of before.
                *(
                    Change(operation, item, before, RedriveOutcome.RECURRED.value)
                    for _, operation, item, before in rows
                ),
            ]
        )

    def _write(self) -> None:
        """Write bodies, failures and counts of staged failures, and make skips."""
        if self.values["created"]:
            self._execute(_INSERT_BODIES)
        self._insert_failures()
        if self.has_redriven:
            self._recur()
        self._execute(_APPLY)
        if self.has_redriven:
            self._execute(_INSERT_ALIASES)
        self._execute(_SPANS)
        ours = (Span(*row) for row in self.cursor.fetchall())
        problems.note_seen(
            self.cursor, problems.span_of_each_problem([*self.spans, *ours])
        )
        if self.has_nameless:
            self._execute(_INSERT_DELIVERIES)
        if self.has_replayed:
            automatic_skips.make_skips(self.cursor, now=self.values["now"])

    def _insert_failures(self) -> None:
        """Insert the failures, but count those that another one stands for."""
        any_repeated = bool(self.values["frequent"]) and repeat_folding.choose(
            self.cursor, self.values
        )
        has_ids = bool(self.values["failure_ids"])
        self._execute(
            _INSERT_FAILURES.format(
                id="id," if has_ids else "",
                taken="(%(failure_ids)s::int8[])[ord + 1]," if has_ids else "",
            )
        )
        if any_repeated:
            repeat_folding.fold(self.cursor, self.values)
