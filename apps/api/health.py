"""`/healthz` and `/readyz`: open to all, so neither reveals a name or an error text.

Only Postgres and its migrations decide readiness: Postgres stores every decision. While
the Celery broker is away, work is late but not lost, since `rescue` enqueues it again.
So its state is shown but never makes the answer "not ready". The same holds for a
shortage of Postgres sessions: holders of a session go on working.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime
from functools import cache, partial
from http import HTTPStatus
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
from apps.core import celery_broker_timeouts, clock, postgres_session_usage
from apps.core.bounded_threads import BoundedThreads
from apps.outbox.models import Outbox
from apps.outbox.sweeper_state_for_pages import state_of
from apps.redelivery.models import EndpointActivity
from apps.triage.services import orphaned_operations_and_expired_rows

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
# A dependency that hangs keeps the thread of its probe: without a limit they pile up.
MOST_PROBES = 16

UP, UNKNOWN, BEHIND, AWAY, SHORT = "up", "unknown", "behind", "away", "short"
BEST_FIRST = (UP, UNKNOWN, AWAY)
NEEDED = ("postgres", "migrations")

States = Mapping[str, object]
NO_POSTGRES: States = {
    "postgres": AWAY,
    "sessions": {"state": UNKNOWN},
    "migrations": UNKNOWN,
    "lanes": UNKNOWN,
    "sender": UNKNOWN,
    "outboxes": {},
    "brokers": {},
    "worker": UNKNOWN,
}
NO_CELERY_BROKER: States = {"celery_broker": AWAY}

_probes = BoundedThreads(MOST_PROBES, name="readyz")


@require_safe
@never_cache
@login_not_required
def alive(_: HttpRequest) -> JsonResponse:
    """Answer the liveness probe `/healthz`: this process answers requests."""
    return JsonResponse({"status": "alive"})


@require_safe
@never_cache
@login_not_required
def ready(_: HttpRequest) -> JsonResponse:
    """Answer `/readyz`: 200 if Postgres answers and is migrated, otherwise 503."""
    states = dependencies(now=clock.now())
    is_ready = all(states[name] == UP for name in NEEDED)
    return JsonResponse(
        {"status": "ready" if is_ready else "not ready", "dependencies": states},
        status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
    )


def dependencies(*, now: datetime) -> dict[str, object]:
    """Probe Postgres and Celery's broker at once; return the state of each dependency.

    One without an answer in two seconds is away.
    """
    postgres = _probes.start(partial(_postgres, now))
    celery_broker = _probes.start(_celery_broker)
    deadline = monotonic() + TIMEOUT_SECONDS
    return {
        **_wait_for(postgres, deadline, default=NO_POSTGRES),
        **_wait_for(celery_broker, deadline, default=NO_CELERY_BROKER),
    }


def _wait_for(
    answer: Future[States] | None, deadline: float, *, default: States
) -> States:
    """Return the states that a dependency's probe reads by `deadline`, or `default`."""
    if answer is None:
        return default
    try:
        return answer.result(timeout=max(0.0, deadline - monotonic()))
    except TimeoutError:
        return default
    except Exception:
        log.exception("a probe of /readyz failed")
        return default


def _postgres(now: datetime) -> States:
    """Probe Postgres, and read from it how lanes, sender, outboxes and worker are.

    Uses this thread's connection. Where migrations are missing, only Postgres' sessions
    are counted.
    """
    try:
        if (
            _migrations_on_disk()
            - MigrationRecorder(connection).applied_migrations().keys()
        ):
            behind = {"postgres": UP, "migrations": BEHIND}
            return {**NO_POSTGRES, **behind, **_sessions()}
        current = {"postgres": UP, "migrations": UP}
        return {
            **current,
            **_sessions(),
            **_lanes(now),
            **_sender(now),
            **_outboxes(now),
            **_worker(now),
        }
    except (OperationalError, InterfaceError) as away:
        log.warning("Postgres is away: %s", away)
        return NO_POSTGRES
    finally:
        connection.close()


@cache
def _migrations_on_disk() -> frozenset[tuple[str, str]]:
    """List the migrations that this release has."""
    return frozenset(MigrationLoader(None).disk_migrations or ())


def _sessions() -> States:
    """Count Postgres' sessions in use, for `/readyz`; name a remedy if few are free."""
    usage = postgres_session_usage.usage()
    numbers = {"used": usage.used, "most": usage.most}
    if usage.is_short:
        return {"sessions": {"state": SHORT, **numbers, "remedy": usage.remedy}}
    return {"sessions": {"state": UP, **numbers}}


def _lanes(now: datetime) -> States:
    """Report whether every topic's lane is alive; count the brokers by their state."""
    lanes, brokers = UP, dict[int | None, str]()
    for lane in Lane.objects.possible():
        is_alive, broker = lane.is_heard(now), lane.topic.broker_id
        state = UNKNOWN if not is_alive else AWAY if lane.state == "away" else UP
        lanes = lanes if is_alive else AWAY
        brokers[broker] = max(state, brokers.get(broker, UP), key=BEST_FIRST.index)
    return {"lanes": lanes, "brokers": dict(Counter(brokers.values()))}


def _sender(now: datetime) -> States:
    """Report for `/readyz` whether every enabled endpoint's sender is alive.

    It is the sender of the endpoint's deliveries.
    """
    activities = EndpointActivity.objects.filter(endpoint__is_enabled=True)
    are_heard = all(activity.is_heard(now) for activity in activities)
    return {"sender": UP if are_heard else AWAY}


def _outboxes(now: datetime) -> States:
    """Count the outboxes by what their sweepers do; a sick one harms no other."""
    outboxes = Outbox.objects.select_related("activity")
    return {"outboxes": dict(Counter(state_of(each, now=now) for each in outboxes))}


def _worker(now: datetime) -> States:
    """Report whether a Celery worker answered lately; up also if none ever did."""
    return {
        "worker": AWAY
        if orphaned_operations_and_expired_rows.worker_missing_for(now=now)
        else UP
    }


def _celery_broker() -> States:
    """Report whether Celery's broker takes a connection, tried once."""
    limits = celery_broker_timeouts.timeouts(current_app.conf.broker_url)
    with current_app.connection_for_write(transport_options=limits) as broker:
        transport = broker.transport
        try:
            # One try: connect() would sleep and try again.
            transport.close_connection(transport.establish_connection())
        except (*broker.connection_errors, *broker.channel_errors) as away:
            log.warning("the Celery broker is away: %s", away)
            return NO_CELERY_BROKER
    return {"celery_broker": UP}
