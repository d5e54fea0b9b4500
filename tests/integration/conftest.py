"""Quick passwords, patient figures, plain static files, a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from apps.api import metrics
from apps.brokers.models import Topic
from apps.core import statement_timeouts
from apps.poison import skip_matching
from apps.triage import tasks
from apps.triage.services import preview_breakdown_counting
from tests.fast_password_hasher import ONE_ROUND
from tests.in_memory_queue_broker import Queues, adapted
from tests.skip_builders_and_list_mirror import topic_named


@pytest.fixture(autouse=True)
def quick_passwords() -> Iterator[None]:
    with override_settings(PASSWORD_HASHERS=ONE_ROUND):
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_figures() -> Iterator[None]:
    """Leave nothing out where the machine is busy; tests of a limit set their own."""
    with pytest.MonkeyPatch.context() as patience:
        patience.setattr(statement_timeouts, "FIGURE_MS", 60_000)
        patience.setattr(statement_timeouts, "SEARCH_MS", 60_000)
        patience.setattr(metrics, "TIMEOUT_MS", 60_000)
        patience.setattr(skip_matching, "LONGEST_SECONDS", 60.0)
        patience.setattr(tasks, "CONVERSION_SECONDS", 60.0)
        patience.setattr(preview_breakdown_counting, "LEAST_SECONDS", 60.0)
        patience.setattr(preview_breakdown_counting, "MOST_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def plain_static_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Serve static files under their plain names, from an existing folder."""
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    storages = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}
    with override_settings(
        STORAGES=storages,
        STATIC_ROOT=tmp_path_factory.mktemp("static"),
        # Otherwise each new client would read all files.
        WHITENOISE_AUTOREFRESH=True,
    ):
        yield


@pytest.fixture
def broker() -> Iterator[Queues]:
    """Return a broker in memory, of a kind that the product has adopted."""
    queues = Queues()
    with adapted(queues):
        yield queues


@pytest.fixture
def replaying_topic(db: None) -> Topic:
    """Return the topic `orders`, whose consumers read old messages again."""
    return topic_named(replays=True)
