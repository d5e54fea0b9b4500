"""`manage.py capture TOPIC`: drain one dead-letter queue now, then end."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.models import Lane, Mode
from apps.core import advisory_locks, clock
from apps.core.errors import PoisonwebError


class Command(BaseCommand):
    help = "Capture what is in the dead-letter queue of a topic now."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topic")

    def handle(self, *_: Any, **options: Any) -> None:
        """Drain the dead-letter queue of a topic once; print the number of letters."""
        name = options["topic"]
        lane = Lane.objects.possible().filter(topic__name=name).first()
        if lane is None:
            raise CommandError(f"no topic {name} has a lane and a dead-letter queue")
        if lane.mode == Mode.OBSERVE:
            raise CommandError(
                f"the lane of {name} only observes: set it to capture or tee first"
            )
        if lane.paused:
            raise CommandError(f"the lane of {name} is paused: resume it first")
        try:
            self._drain(lane)
        except PoisonwebError as trouble:
            raise CommandError(str(trouble)) from trouble

    def _drain(self, lane: Lane) -> None:
        """Drain a dead-letter queue under the lane's lock until it is empty."""
        with advisory_locks.attempt(lane.lock_name) as lane_lock:
            if lane_lock is None:
                raise CommandError("a lane is draining this topic already")
            before = Lane.objects.get(pk=lane.pk).captured
            with Drain(lane=lane, clock=clock.now) as drain:
                drain.reader.dead_letter_exhausted()
                while drain.drain_batch(wait=0.0):
                    pass
                drain.monitor_lane()
            captured = Lane.objects.get(pk=lane.pk).captured - before
        self.stdout.write(f"captured {captured}")
