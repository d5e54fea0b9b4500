"""What leaves: rows as plain dicts. `schemas` describes them; the tests compare."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from apps.api.selectors.brokers import BrokerSeen, Found, TopicSeen
from apps.api.selectors.operations import Progress
from apps.api.selectors.poisons import PoisonSeen
from apps.api.selectors.positions import PositionSeen
from apps.audit.models import Entry
from apps.audit.services import Verdict
from apps.bookmarks.models import Move
from apps.bookmarks.runs import size
from apps.bookmarks.services.opening import Opened
from apps.bookmarks.services.settling import Answer as SettledAnswer
from apps.brokers import secrets
from apps.brokers.models import Topic
from apps.brokers.ports import Capabilities
from apps.brokers.reaching import Reached
from apps.capture.models import Lane
from apps.capture.services import Answer
from apps.core.text import storable
from apps.poison.models import Poison, Problem, Redrive
from apps.poison.reading import FailureSeen
from apps.poison.skip_list import Snapshot, Told
from apps.poison.states import Shown
from apps.reports.models import Rate, Run
from apps.triage.models import Item, Operation
from apps.triage.services.moves import Review
from apps.triage.services.selection import Seen

Shape = dict[str, object]


def answer(told: Answer) -> Shape:
    whole: Shape = {
        "status": told.status.value,
        "poison": told.poison,
        "detail": told.detail,
        "pointer": told.pointer,
    }
    return {name: value for name, value in whole.items() if value is not None}


def poison(row: Poison, *, now: datetime) -> Shape:
    return {
        "id": row.pk,
        "topic": row.topic.name,
        "consumer_group": row.consumer_group,
        "problem": row.problem_id,
        "message_id": row.message_id,
        "state": row.state,
        "shown": row.shown.value,
        "silent": row.silent(now),
        "suspected": row.suspected,
        "moved_to": _name(row.moved_to),
        "cause": row.cause,
        "error_type": row.error_type,
        "error_message": row.error_message,
        "size": row.size,
        "digest": bytes(row.digest).hex(),
        "reuse": row.reuse,
        "counts": {
            "failures": row.failures,
            "attempts": row.attempts,
            "crashes": row.crashes,
            "redrives": row.redrives,
            "recurrences": row.recurrences,
        },
        "first_failed_at": row.first_failed_at,
        "last_failed_at": row.last_failed_at,
        "captured_at": row.captured_at,
        "sent_at": row.sent_at,
        "dropped_at": row.dropped_at,
    }


def poison_detail(seen: PoisonSeen, *, now: datetime) -> Shape:
    entries = seen.entries
    return {
        **poison(seen.poison, now=now),
        "bookmark": seen.poison.bookmark_text,
        "header_names": seen.header_names,
        "failures": [failure(each) for each in seen.failures],
        "redrives": [redrive(row) for row in seen.redrives],
        "operations": [operation(row) for row in seen.operations],
        "audit": None if entries is None else [entry(row) for row in entries],
    }


def failure(seen: FailureSeen) -> Shape:
    row = seen.failure
    return {
        "report_id": row.report_id,
        "problem": row.problem_id,
        "redrive": row.redrive,
        "suspected": row.suspected,
        "cause": row.cause,
        "error_type": row.error_type,
        "error_message": seen.message,
        "traceback": seen.traceback,
        "cut": seen.cut,
        "client_name": row.client_name,
        "sub_id": row.sub_id,
        "host": row.host,
        "handler_version": row.handler_version,
        "attempts": row.attempts,
        "failures": row.failures,
        "crashes": row.crashes,
        "dequeue_count": row.dequeue_count,
        "first_failed_at": row.first_failed_at,
        "failed_at": row.failed_at,
        "failed_at_claimed": row.failed_at_claimed,
        "captured_at": row.captured_at,
    }


def redrive(row: Redrive) -> Shape:
    item: Item | None = getattr(row, "item", None)
    return {
        "id": row.pk,
        "n": row.n,
        "topic": row.topic.name,
        "operation": None if item is None else item.operation_id,
        "outcome": row.outcome,
        "detail": row.detail,
        "bookmark": row.bookmark,
        "copies": row.copies,
        "claimed_at": row.claimed_at,
        "sent_at": row.sent_at,
        "answered_at": row.answered_at,
    }


def problem(row: Problem, *, counts: dict[Shown, int]) -> Shape:
    return {
        "id": row.pk,
        "topic": row.topic.name,
        "consumer_group": row.consumer_group,
        "title": row.title,
        "summary": row.summary,
        "fingerprint": bytes(row.fingerprint).hex(),
        "version": row.version,
        "total": sum(counts.values()),
        "counts": {shown.value: counts[shown] for shown in Shown},
        "first_seen": row.first_seen,
        "last_seen": row.last_seen,
    }


def preview(row: Operation, seen: Seen, *, now: datetime) -> Shape:
    return {
        "token": row.token,
        "verb": row.verb,
        "q": row.query,
        "target_topic": _name(row.target_topic),
        "ordered": row.ordered,
        "as_of": row.created_at,
        "expires_at": row.expires_at,
        "taken": row.taken,
        "total": row.total,
        "will_act": seen.will_act,
        "newer": seen.newer,
        "skipped": [{"reason": why, "count": number} for why, number in seen.skipped],
        "breakdown": {
            "topics": _named(seen.by_topic),
            "consumer_groups": _named(seen.by_consumer),
        },
        "sample": [poison(each, now=now) for each in seen.sample],
    }


def operation(row: Operation) -> Shape:
    return {
        "id": row.pk,
        "verb": row.verb,
        "state": row.state,
        "actor": row.actor,
        "source": row.source,
        "q": row.query,
        "target_topic": _name(row.target_topic),
        "ordered": row.ordered,
        "undo_of": row.undo_of_id,
        "reason": row.reason,
        "total": row.total,
        "trouble": row.trouble,
        "retry_at": row.retry_at,
        "as_of": row.created_at,
        "confirmed_at": row.confirmed_at,
        "finished_at": row.finished_at,
    }


def progress(told: Progress) -> Shape:
    return {
        **operation(told.operation),
        "counts": told.counts,
        "silent": told.silent,
        "refused": reasons(told.refused),
        "skipped": reasons(told.skipped),
        "rate": told.rate,
        "eta": told.eta,
    }


def reasons(pairs: Iterable[tuple[int, str]]) -> list[Shape]:
    return [{"poison": poison_id, "reason": why} for poison_id, why in pairs]


def entry(row: Entry) -> Shape:
    return {
        "seq": row.seq,
        "at": row.at,
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "reason": row.reason,
        "source": row.source,
        "detail": row.detail,
        "hash": bytes(row.hash).hex(),
    }


def skip(told: Told) -> Shape:
    """Tell of a skip; its matcher is exact, whatever characters its message bears."""
    return {
        "id": told.id,
        "topic": told.topic,
        "matcher": {"kind": told.kind, "value": told.matcher.wire_value},
        "consumer_group": told.consumer_group,
        "handler_version": told.handler_version,
        "redrive": told.redrive,
        "expires_at": told.expires_at,
        "reason": told.reason,
        "by": told.by,
        "at": told.at,
        "poison": told.poison,
    }


def skip_at(told: Told) -> Shape:
    return {**skip(told), "revision": told.revision}


def unskip(told: Told) -> Shape:
    return {
        "id": told.id,
        "topic": told.topic,
        "revision": told.revision,
        "because": told.because,
    }


def skips(taken: Snapshot) -> Shape:
    return {
        "epoch": taken.epoch,
        "revision": taken.revision,
        "skips": [skip(told) for told in taken.skips],
    }


def verdict(told: Verdict) -> Shape:
    return {
        "entries": told.entries,
        "ok": told.ok,
        "first_bad": told.first_bad,
        "head": told.head,
    }


def position(seen: PositionSeen) -> Shape:
    row = seen.position
    return {
        "id": row.pk,
        "source": row.source,
        "topic": row.topic.name,
        "consumer_group": row.consumer_group,
        "client_name": row.client_name,
        "sub_id": row.sub_id,
        "epoch": row.epoch,
        "observed_at": row.observed_at,
        "moved_at": row.moved_at,
        "marks": [
            {
                "publisher": mark.publisher,
                "processed": mark.processed,
                "bookmark": mark.bookmark,
                "received": mark.received,
                "persisted": mark.persisted,
                "ahead": len(mark.ahead),
                "head": head,
                "lag": mark.lag,
                "pending": mark.pending,
                "settled_at": mark.settled_at,
            }
            for mark, head in seen.marks
        ],
    }


def opened(told: Opened) -> Shape:
    return {
        "epoch": told.epoch,
        "positions": [
            {
                "position": row.pk,
                "sub_id": row.sub_id,
                "topic": row.topic.name,
                "publisher": mark.publisher,
                "processed": mark.processed,
                "persisted": mark.persisted,
                "received": mark.received,
                "settled": mark.ahead,
                "resume": mark.resume,
                "bookmark": mark.bookmark,
            }
            for row in told.positions
            for mark in row.marks.all()
        ],
    }


def settled(told: SettledAnswer) -> Shape:
    whole: Shape = {
        "status": told.status.value,
        "detail": told.detail,
        "pointer": told.pointer,
        "pressure": told.pressure,
    }
    return {name: value for name, value in whole.items() if value is not None}


def moved(review: Review, done: Move | None, *, now: datetime) -> Shape:
    """Tell what a move did, or would do where there is none."""
    return {
        "id": done and done.pk,
        "position": review.position.pk,
        "epoch": done.epoch if done else review.position.epoch,
        "held": review.is_held(now),
        "whole": review.whole,
        "steps": [
            {
                "publisher": step.change.publisher,
                "before": step.change.old,
                "after": step.change.new,
                "replayed": size(step.change.replayed),
                "passed_over": size(step.change.passed_over),
                "beyond": step.beyond,
                "poison_replayed": [poison.id for poison in step.replayed],
                "poison_passed_over": [poison.id for poison in step.passed_over],
            }
            for step in review.steps
        ],
    }


def broker(seen: BrokerSeen) -> Shape:
    row = seen.broker
    return {
        "id": row.pk,
        "name": row.name,
        "kind": row.kind,
        "address": secrets.described(row.url),
        "options": row.options,
        "sample": row.is_sample,
        "topics": seen.topics,
        "capabilities": seen.capabilities and capabilities(seen.capabilities),
    }


def capabilities(can: Capabilities) -> Shape:
    return {
        "max_message": can.max_message,
        "counts_headers": can.counts_headers,
        "headers": can.headers.value,
        "most_headers": can.most_headers,
        "ordering": can.ordering.value,
        "dedupe_window": can.dedupe_window,
        "durability": can.durability.value,
        "delay": can.delay,
        "peeks": can.peeks,
        "extends": can.extends,
        "counting": can.counting.value,
        "dead_letters_itself": can.dead_letters_itself,
        "delivered": can.delivered,
    }


def reached(told: Reached) -> Shape:
    return {"ok": told.ok, "detail": told.told, "milliseconds": told.milliseconds}


def found_topic(seen: Found) -> Shape:
    """Tell of a topic as its broker does; what is no text in its name is replaced."""
    found = seen.found
    return {
        "native_name": storable(found.name),
        "depth": found.depth,
        "dead_letter_queue": storable(found.dead_letter_queue),
        "dead_letters": found.dead_letters,
        "name": seen.name,
    }


def topic(seen: TopicSeen, *, now: datetime) -> Shape:
    row = seen.topic
    return {
        "id": row.pk,
        "name": row.name,
        "broker": row.broker and row.broker.name,
        "native_name": row.native_name,
        "dead_letter_queue": row.dead_letter_queue,
        "max_dequeue_count": row.max_dequeue_count,
        "visibility_timeout": row.visibility_timeout,
        "retention_days": row.retention_days,
        "owner": row.owner,
        "runbook": row.runbook,
        "options": row.options,
        "lane": seen.lane and lane(seen.lane, held=seen.held, now=now),
    }


def lane(row: Lane, *, held: int, now: datetime) -> Shape:
    return {
        "mode": row.mode,
        "tee_queue": row.tee_queue,
        "paused": row.paused,
        "state": row.state,
        "heard": row.is_heard(now),
        "detail": row.detail,
        "seen_at": row.seen_at,
        "depth": row.depth,
        "oldest_at": row.oldest_at,
        "captured": row.captured,
        "rate": row.rate,
        "held": held,
        "error": row.error,
        "error_at": row.error_at,
    }


def rate(row: Rate) -> Shape:
    return {
        "day": row.day_id,
        "hour": row.hour,
        "topic": row.topic.name,
        "sample": row.topic.broker is not None and row.topic.broker.is_sample,
        "consumer_group": row.consumer_group,
        "source": row.source,
        "delivered": row.delivered,
        "failed": row.failed,
        "uncounted": row.uncounted,
        "poisoned": row.poisoned,
        "skipped": row.skipped,
        "retried": row.retried,
        "redriven": row.redriven,
        "confirmed": row.confirmed,
        "recurred": row.recurred,
        "dropped": row.dropped,
        "failure_rate": row.failure_rate,
        "interval": _interval(row),
        "p50_ms": row.p50_ms,
        "p95_ms": row.p95_ms,
        "p99_ms": row.p99_ms,
        "run": row.day.run_id,
    }


def _interval(row: Rate) -> Shape | None:
    if row.failure_rate is None:
        return None
    return {"low": row.rate_low, "high": row.rate_high}


def run(row: Run, *, trouble: bool) -> Shape:
    """Tell of a run; its trouble may name topics, which not everybody sees."""
    return {
        "id": row.pk,
        "state": row.state,
        "from": row.first_day,
        "to": row.last_day,
        "asked_by": row.asked_by,
        "asked_at": row.asked_at,
        "started_at": row.started_at,
        "as_of": row.as_of,
        "finished_at": row.finished_at,
        "seconds": row.duration and row.duration.total_seconds(),
        "rows_in": row.rows_in,
        "late_rows": row.late_rows,
        "trouble": row.trouble if trouble else None,
    }


def _name(topic: Topic | None) -> str | None:
    return None if topic is None else topic.name


def _named(pairs: Iterable[tuple[str, int]]) -> list[Shape]:
    return [{"name": name, "count": number} for name, number in pairs]
