"""The web server's door: `uvicorn poisonweb.asgi:application`."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "poisonweb.settings")

from django.conf import settings
from django.core.asgi import get_asgi_application

from apps.core import celery_limits
from poisonweb.celery import app
from poisonweb.limits import limited

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
    broker_connection_timeout=celery_limits.SECONDS,
    broker_transport_options=celery_limits.impatient(settings.CELERY_BROKER_URL or ""),
    task_publish_retry=False,
)

# A little more than the API takes, so that its own answer names the limit.
application = limited(
    get_asgi_application(), most=settings.POISONWEB_REQUEST_LIMIT + 1024 * 1024
)
