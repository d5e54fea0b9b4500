"""The web server's door: `uvicorn poisonweb.asgi:application`."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "poisonweb.settings")

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections

from apps.core import celery_transport
from poisonweb.celery import app
from poisonweb.handler import OneHop
from poisonweb.limits import (
    MIB,
    Application,
    Scope,
    in_turn,
    is_form,
    is_of_skips,
    is_question_to_broker,
    is_sign_in,
    is_sign_in_elsewhere,
    limited,
)

# WhiteNoise streams our few small files from plain iterators; no reader waits for that.
warnings.filterwarnings("ignore", "StreamingHttpResponse must consume synchronous")

# Only the web answers many at once, in threads that come and go: it shares connections,
# and no question of a reader's may keep one busy for long.
_database = settings.DATABASES["default"]
_database["CONN_HEALTH_CHECKS"] = True
_database["OPTIONS"] = {
    **_database["OPTIONS"],
    "pool": {"min_size": 2, "max_size": 16, "timeout": 3},
    "options": "-c timezone=UTC -c statement_timeout=15000",
}

# What is decided stands in Postgres, and rescue hands it out: the word to the workers
# is given up soon, so that a Celery broker that hangs keeps nobody's page.
app.conf.update(
    broker_connection_timeout=celery_transport.SECONDS,
    broker_transport_options=celery_transport.timeouts(
        settings.CELERY_BROKER_URL or ""
    ),
    task_publish_retry=False,
)

django.setup(set_prefix=False)
from apps.team import senders  # noqa: E402 - has models, so it comes after the set-up


def _is_known(scope: Scope) -> bool:
    try:
        return senders.is_known(dict(scope["headers"]))
    except (OperationalError, InterfaceError):
        raise ConnectionError("Postgres is away") from None
    finally:
        close_old_connections()


# In turns, within the connections that there are: none of these crowds keeps consumers
# from reporting, nor another one of them from its turns.
_in_turns: Application = OneHop()
_TURNS = (
    (is_of_skips, 8),
    (is_sign_in, 3),
    (is_sign_in_elsewhere, 4),
    (is_question_to_broker, 8),
    (is_form, 4),
)
for _kind, _most in _TURNS:
    _in_turns = in_turn(_in_turns, of=_kind, most=_most)

# A little more than the API takes, so that its own answer names the limit.
application = limited(
    _in_turns,
    most_of_api=settings.POISONWEB_REQUEST_LIMIT + MIB,
    recognise=sync_to_async(_is_known, thread_sensitive=False),
)
