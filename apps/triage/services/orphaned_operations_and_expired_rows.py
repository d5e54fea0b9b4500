"""Find operations that no worker works on, and delete expired rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from apps.core import advisory_locks
from apps.team import sessions, sign_in_attempts
from apps.team.models import IdempotencyKey
from apps.triage.models import Operation, WorkerBeat, lock_name
from apps.triage.operation_querysets import OperationQuerySet
from apps.triage.operation_states import OperationState

IDEMPOTENCY_KEYS_LIVE = timedelta(hours=24)
# A worker answers every two seconds; this long without an answer is too long.
WORKER_LIVES = timedelta(seconds=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphans:
    """Operations that wait for a worker: to be run, or to have their items taken."""

    to_run: tuple[int, ...]
    to_take: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    previews: int
    idempotency_keys: int


def beat(*, now: datetime) -> None:
    """Store that a Celery worker is alive now."""
    WorkerBeat.objects.update_or_create(id=1, defaults={"at": now})


def worker_missing_for(*, now: datetime) -> timedelta | None:
    """Return how long no Celery worker has answered; None if one does."""
    last = WorkerBeat.objects.values_list("at", flat=True).first()
    missing = None if last is None else now - last
    return missing if missing and missing > WORKER_LIVES else None


def orphans(*, now: datetime) -> Orphans:
    """List due operations that no process runs, and previews without items."""
    due = Operation.objects.of_this_release().active().due(now)
    untaken = Operation.objects.of_this_release().previews().filter(taken=False)
    untaken = untaken.filter(expires_at__gt=now)
    return Orphans(
        to_run=_without_run(due),
        to_take=tuple(untaken.values_list("pk", flat=True)),
    )


def cancel_waits(*, now: datetime) -> bool:
    """Tell whether an operation is to be cancelled, and no process runs it yet."""
    due = Operation.objects.of_this_release().active().due(now)
    return bool(_without_run(due.filter(state=OperationState.CANCELLING)))


def _without_run(operations: OperationQuerySet) -> tuple[int, ...]:
    """Return the ids of those operations that no process runs."""
    waiting = {pk: lock_name(pk) for pk in operations.values_list("pk", flat=True)}
    busy = advisory_locks.names_locked(waiting.values())
    return tuple(pk for pk, name in waiting.items() if name not in busy)


def prune(*, now: datetime) -> Pruned:
    """Delete old previews, idempotency keys, sessions and wrong passwords."""
    with transaction.atomic():
        # Locked: one that is being confirmed or taken just now is left alone.
        stale = Operation.objects.stale(now).select_for_update(skip_locked=True)
        previews = list(stale.values_list("pk", flat=True))
        Operation.objects.filter(pk__in=previews).delete()
    old = IdempotencyKey.objects.filter(created_at__lt=now - IDEMPOTENCY_KEYS_LIVE)
    keys, _ = old.delete()
    sign_in_attempts.prune(now=now)
    sessions.prune(now=now)
    return Pruned(previews=len(previews), idempotency_keys=keys)
