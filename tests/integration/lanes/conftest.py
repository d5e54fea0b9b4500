"""A topic whose queues are in memory, with a lane that observes."""

from __future__ import annotations

import pytest

from apps.brokers.models import Topic
from apps.capture.models import Mode
from apps.core import clock
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import topic_on_queues


@pytest.fixture
def mail(broker: Queues) -> Topic:
    return topic_on_queues(clock.now(), mode=Mode.OBSERVE)
