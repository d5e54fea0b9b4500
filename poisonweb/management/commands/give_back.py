"""`manage.py give_back TOPIC`: put open messages back into the dead-letter queue."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import PoisonwebError
from apps.team.rights import Principal, Scope
from apps.triage.models import Operation
from apps.triage.progress import counts_of
from apps.triage.services import running, start_of_give_back_operation
from apps.triage.services.running import SliceEnd

COMMAND_LINE = Principal(
    actor=Actor.system("command line"),
    scopes=frozenset({Scope.OPERATIONS_WRITE}),
    source="command",
)
# A change of a lane's settings takes effect within this time.
LANE_STOP_SECONDS = 2.0
POLL_SECONDS = 0.5


class Command(BaseCommand):
    help = (
        "Give every open message of a topic back to its dead-letter queue, byte for "
        "byte as it was captured. Its lane must be paused, or only observe."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topic")
        parser.add_argument("--reason", default="", help="for the audit trail")

    def handle(self, *_: Any, **options: Any) -> None:
        topic = Topic.objects.filter(name=options["topic"]).first()
        if topic is None:
            raise CommandError(f"there is no topic {options['topic']}")
        _check_lane(topic)
        try:
            operation = start_of_give_back_operation.give_back(
                topic=topic,
                reason=options["reason"],
                principal=COMMAND_LINE,
                now=clock.now(),
            )
        except PoisonwebError as refusal:
            raise CommandError(str(refusal)) from refusal
        if operation is None:
            self.stdout.write("gave back 0: no message of this topic is open")
            return
        self._finish(operation)

    def _finish(self, operation: Operation) -> None:
        """Carry the give-back operation out, or wait for the worker that does.

        Raise CommandError if messages were refused.
        """
        while self._carry_out(operation) is not SliceEnd.DONE:
            operation.refresh_from_db()
            if operation.trouble:
                self.stderr.write(f"waiting: {operation.trouble}")
            time.sleep(POLL_SECONDS)
        counts = counts_of(operation)
        self.stdout.write(f"gave back {counts['moved']} (operation {operation.pk})")
        if counts["refused"]:
            refused = counts["refused"]
            raise CommandError(f"{refused} were refused and are open still")

    def _carry_out(self, operation: Operation) -> SliceEnd:
        """Carry the give-back operation out in this process, slice by slice."""
        with RoutingPublisher() as publisher:
            ended = SliceEnd.AGAIN
            while ended is SliceEnd.AGAIN:
                ended = running.run(
                    operation_id=operation.pk, publisher=publisher, clock=clock.now
                )
        return ended


def _check_lane(topic: Topic) -> None:
    """Raise CommandError if the lane would capture again what `give_back` returns.

    Give a lane that was paused just now the time to stop.
    """
    lane = Lane.objects.filter(topic=topic).first()
    if lane is None:
        return
    if lane.mode != Mode.OBSERVE and not lane.paused:
        raise CommandError(
            f"the lane of {topic.name} is in mode {lane.mode}, and would capture again "
            "what is given back: pause it first, or let it only observe"
        )
    if lane.is_heard(clock.now()):
        time.sleep(LANE_STOP_SECONDS)
