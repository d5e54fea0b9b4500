"""`/healthz` and `/readyz`: open to all, so neither tells an address or an error.

Only Postgres matters to being ready: it carries every decision. A Celery broker that is
away makes work late, not lost, since `rescue` finds it; so that is shown and no more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from http import HTTPStatus
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from celery import current_app
from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from apps.brokers.models import Topic
from apps.core import clock

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
LANE_IS_ALIVE_FOR = timedelta(seconds=30)
# A dependency that hangs keeps its thread; more than these would only pile up.
MOST_HANGING = 16

UP, AWAY, BEHIND, UNKNOWN = "up", "away", "behind", "unknown"
NEEDED = ("postgres", "migrations")

Found = TypeVar("Found")
_hanging = threading.BoundedSemaphore(MOST_HANGING)


@require_safe
@never_cache
@login_not_required
def alive(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "alive"})


@require_safe
@never_cache
@login_not_required
def ready(request: HttpRequest) -> JsonResponse:
    found = dependencies(now=clock.now())
    is_ready = all(found[name] == UP for name in NEEDED)
    return JsonResponse(
        {"status": "ready" if is_ready else "not ready", "dependencies": found},
        status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
    )


def dependencies(*, now: datetime) -> dict[str, object]:
    """Ask all of them at once, and take no answer in time for an absence."""
    postgres = _asked(lambda: _postgres(now))
    celery_broker = _asked(_celery_broker)
    until = monotonic() + PATIENCE_SECONDS
    return {
        **_answer(postgres, until, instead=NO_POSTGRES),
        "celery_broker": _answer(celery_broker, until, instead=AWAY),
    }


NO_POSTGRES: Mapping[str, object] = {
    "postgres": AWAY,
    "migrations": UNKNOWN,
    "lanes": UNKNOWN,
    "brokers": {},
}


def _postgres(now: datetime) -> Mapping[str, object]:
    """Tell of Postgres and of what can be read in it, on this thread's connection."""
    try:
        pending = _migrations() - set(MigrationRecorder(connection).applied_migrations())
        if pending:
            return {**NO_POSTGRES, "postgres": UP, "migrations": BEHIND}
        return {"postgres": UP, "migrations": UP, **_lanes(now)}
    finally:
        connection.close()


@cache
def _migrations() -> set[tuple[str, str]]:
    return set(MigrationLoader(None).disk_migrations)


def _lanes(now: datetime) -> Mapping[str, object]:
    topics = Topic.objects.drained().select_related("broker")
    brokers: dict[str, str] = {}
    lanes = UP
    for topic in topics:
        seen = topic.lane_seen_at
        if seen is None or now - seen > LANE_IS_ALIVE_FOR:
            lanes, state = AWAY, UNKNOWN
        else:
            state = AWAY if topic.lane_state == "away" else UP
        name = str(topic.broker)
        brokers[name] = max(state, brokers.get(name, UP), key=(UP, UNKNOWN, AWAY).index)
    return {"lanes": lanes, "brokers": brokers}


def _celery_broker() -> str:
    options = {"socket_connect_timeout": 1, "socket_timeout": 1}
    with current_app.connection_for_write(transport_options=options) as link:
        link.connect()
    return UP


def _asked(question: Callable[[], Found]) -> SimpleQueue[Found | None]:
    """Put a question in a thread of its own: what it asks may never answer."""
    answers: SimpleQueue[Found | None] = SimpleQueue()

    def ask() -> None:
        with _hanging:
            answers.put(_attempted(question))

    threading.Thread(target=ask, name="readyz", daemon=True).start()
    return answers
