"""`/healthz` and `/readyz`: open to all, so neither tells a name or an error.

Only Postgres matters to being ready: it carries every decision. A Celery broker that is
away makes work late, not lost, since `rescue` finds it; so that is shown and no more.
The same holds where its sessions run short: who has one goes on.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, partial
from http import HTTPStatus
from queue import Empty, SimpleQueue
from time import monotonic

from celery import current_app
from django.contrib.auth.decorators import login_not_required
from django.db import InterfaceError, OperationalError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from apps.capture.models import Lane
from apps.core import celery_transport, clock, session_usage
from apps.triage.services import upkeep

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
# A dependency that hangs keeps the thread that asked it; more would only pile up.
MOST_HANGING = 16

UP, UNKNOWN, BEHIND, AWAY, SHORT = "up", "unknown", "behind", "away", "short"
WORSE = (UP, UNKNOWN, AWAY)
NEEDED = ("postgres", "migrations")

States = Mapping[str, object]
NO_POSTGRES: States = {
    "postgres": AWAY,
    "sessions": {"state": UNKNOWN},
    "migrations": UNKNOWN,
    "lanes": UNKNOWN,
    "brokers": {},
    "worker": UNKNOWN,
}
NO_CELERY_BROKER: States = {"celery_broker": AWAY}

_hanging = threading.BoundedSemaphore(MOST_HANGING)


@require_safe
@never_cache
@login_not_required
def alive(_: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "alive"})


@require_safe
@never_cache
@login_not_required
def ready(_: HttpRequest) -> JsonResponse:
    states = dependencies(now=clock.now())
    is_ready = all(states[name] == UP for name in NEEDED)
    return JsonResponse(
        {"status": "ready" if is_ready else "not ready", "dependencies": states},
        status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
    )


def dependencies(*, now: datetime) -> dict[str, object]:
    """Ask all of them at once; what has not answered in two seconds is away."""
    postgres, celery_broker = _asked(partial(_postgres, now)), _asked(_celery_broker)
    until = monotonic() + PATIENCE_SECONDS
    return {
        **_answer(postgres, until, instead=NO_POSTGRES),
        **_answer(celery_broker, until, instead=NO_CELERY_BROKER),
    }


def _asked(question: Callable[[], States]) -> SimpleQueue[States]:
    """Put a question in a thread of its own, for it may never be answered."""
    answers: SimpleQueue[States] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(question())
        finally:
            _hanging.release()

    if _hanging.acquire(blocking=False):
        threading.Thread(target=ask, name="readyz", daemon=True).start()
    return answers


def _answer(answers: SimpleQueue[States], until: float, *, instead: States) -> States:
    try:
        return answers.get(timeout=max(0.0, until - monotonic()))
    except Empty:
        return instead


def _postgres(now: datetime) -> States:
    """Tell of Postgres and of what is read in it, on a connection of this thread."""
    try:
        if _migrations() - MigrationRecorder(connection).applied_migrations().keys():
            behind = {"postgres": UP, "migrations": BEHIND}
            return {**NO_POSTGRES, **behind, **_sessions()}
        here = {"postgres": UP, "migrations": UP}
        return {**here, **_sessions(), **_lanes(now), **_worker(now)}
    except (OperationalError, InterfaceError) as away:
        log.warning("Postgres is away: %s", away)
        return NO_POSTGRES
    finally:
        connection.close()


@cache
def _migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None).disk_migrations or ())


def _sessions() -> States:
    """Tell how many sessions are in use, and what to do before none is left."""
    usage = session_usage.usage()
    numbers = {"used": usage.used, "most": usage.most}
    if usage.is_short:
        return {"sessions": {"state": SHORT, **numbers, "remedy": usage.remedy}}
    return {"sessions": {"state": UP, **numbers}}


def _lanes(now: datetime) -> States:
    """Say whether each topic's lane is alive; count the brokers by their state."""
    lanes, brokers = UP, dict[int | None, str]()
    for lane in Lane.objects.possible():
        is_alive, broker = lane.is_heard(now), lane.topic.broker_id
        state = UNKNOWN if not is_alive else AWAY if lane.state == "away" else UP
        lanes = lanes if is_alive else AWAY
        brokers[broker] = max(state, brokers.get(broker, UP), key=WORSE.index)
    return {"lanes": lanes, "brokers": dict(Counter(brokers.values()))}


def _worker(now: datetime) -> States:
    return {"worker": AWAY if upkeep.worker_missing_for(now=now) else UP}


def _celery_broker() -> States:
    limits = celery_transport.timeouts(current_app.conf.broker_url)
    with current_app.connection_for_write(transport_options=limits) as broker:
        transport = broker.transport
        try:
            # One try: connect() would sleep and try again.
            transport.close_connection(transport.establish_connection())
        except (*broker.connection_errors, *broker.channel_errors) as away:
            log.warning("the Celery broker is away: %s", away)
            return NO_CELERY_BROKER
    return {"celery_broker": UP}
