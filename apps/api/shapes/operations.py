"""Operations, and their progress."""

from __future__ import annotations

from collections.abc import Iterable

from apps.api.selectors.operations import Progress
from apps.api.shapes.base import Shape, name_of
from apps.triage.models import Operation


def operation(row: Operation) -> Shape:
    return {
        "id": row.pk,
        "verb": row.verb,
        "state": row.state,
        "actor": row.actor,
        "source": row.source,
        "q": row.query,
        "target_topic": name_of(row.target_topic),
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


def progress(state: Progress) -> Shape:
    return {
        **operation(state.operation),
        "counts": state.tally.counts,
        "acts_on": state.tally.acts_on,
        "acted": state.tally.acted,
        "given_back_to": state.operation.given_back_to or None,
        "silent": state.silent,
        "refused": reasons(state.refused),
        "skipped": reasons(state.skipped),
        "rate": state.rate,
        "eta": state.eta,
    }


def reasons(pairs: Iterable[tuple[int, str]]) -> list[Shape]:
    return [{"poison": poison_id, "reason": why} for poison_id, why in pairs]
