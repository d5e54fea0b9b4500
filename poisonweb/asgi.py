"""The ASGI application of the web: `uvicorn poisonweb.asgi:application`."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "poisonweb.settings")

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections

from apps.core import celery_broker_timeouts
from poisonweb import postgres_pools
from poisonweb.celery import app
from poisonweb.one_thread_asgi_request_handler import ThreadedHandler
from poisonweb.postgres_pools import SessionPool, assign_pools
from poisonweb.request_limits import (
    MIB,
    Application,
    Scope,
    is_of_skips,
    is_other_form,
    is_question_to_broker,
    is_sign_in,
    is_sign_in_elsewhere,
    limit_concurrency,
    limit_size,
)

# WhiteNoise streams our few small files from plain iterators; no reader waits for that.
warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous")

# Only the web answers many requests at once, in many threads: they share the sessions
# of their pool, and a time-out keeps slow queries from blocking it.
_database = settings.DATABASES["default"]
_database["CONN_HEALTH_CHECKS"] = True
_database["ENGINE"] = "poisonweb.postgres_pools"
# A request that waits for a session has a thread: both pools together have fewer
# requests than there are threads.
_database["OPTIONS"] = {
    **_database["OPTIONS"],
    "pool": {
        name: {
            "min_size": 1,
            "max_size": postgres_pools.MOST_SESSIONS[name],
            "max_waiting": waiting,
            "timeout": 3,
        }
        for name, waiting in ((SessionPool.PAGES, 100), (SessionPool.API, 800))
    },
    "options": f"{_database['OPTIONS']['options']} -c statement_timeout=15000",
}

# Decisions are rows in Postgres, which `rescue` hands out. So publishing a task times
# out soon: a Celery broker that hangs does not delay pages.
app.conf.update(
    broker_connection_timeout=celery_broker_timeouts.SECONDS,
    broker_transport_options=celery_broker_timeouts.timeouts(
        settings.CELERY_BROKER_URL or ""
    ),
    task_publish_retry=False,
)

django.setup(set_prefix=False)
from apps.team import credential_check_before_body  # noqa: E402 - has models, so it comes after the set-up


def _is_known_sender(scope: Scope) -> bool:
    """Check if a valid API key or session sent a request, for the web's size limits.

    Raises ConnectionError while Postgres is away.
    """
    try:
        return credential_check_before_body.is_known(dict(scope["headers"]))
    except (OperationalError, InterfaceError):
        raise ConnectionError("Postgres is away") from None
    finally:
        close_old_connections()


# Pages and the API have pools of their own (docs/adr/0035). Within them these kinds
# leave something to the others: a report does not wait for the skip list.
_application: Application = ThreadedHandler()
_MOST_AT_ONCE = (
    (is_of_skips, 8),
    (is_sign_in, 3),
    (is_sign_in_elsewhere, 4),
    (is_question_to_broker, 8),
    (is_other_form, 4),
)
for _kind, _most in _MOST_AT_ONCE:
    _application = limit_concurrency(_application, of=_kind, most=_most)

# A little more than the API accepts, so that the API's own answer names the limit.
_limited = limit_size(
    _application,
    most_of_api=settings.POISONWEB_REQUEST_LIMIT + MIB,
    recognise=sync_to_async(_is_known_sender, thread_sensitive=False),
)
application = assign_pools(_limited)
