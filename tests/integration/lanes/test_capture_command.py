"""`manage.py capture` drains a dead-letter queue once."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from apps.brokers.models import Topic
from apps.capture.models import Lane, Mode
from apps.poison.models import Poison
from tests.in_memory_queue_broker import Queues

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "observe"}, "only observes: set it to capture or tee first"),
        ({"mode": "capture", "paused": True}, "is paused: resume it first"),
    ],
)
def test_the_capture_command_refuses_an_observing_or_paused_lane(
    broker: Queues, mail: Topic, changes: dict[str, object], words: str
) -> None:
    Lane.objects.update(**changes)
    broker.put("mail-dead", b"x")

    with pytest.raises(CommandError, match=words):
        call_command("capture", "mail")

    assert len(broker.contents("mail-dead")) == 1


def test_the_capture_command_drains_a_queue(
    broker: Queues, mail: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    Lane.objects.update(mode=Mode.CAPTURE.value)
    for _ in range(3):
        broker.put("mail-dead", b"x")

    call_command("capture", "mail")

    assert capsys.readouterr().out == "captured 3\n"
    assert Poison.objects.count() == 3
