"""`manage.py capture TOPIC`: drain one dead-letter queue now, then end."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.brokers.models import Topic
from apps.capture.lanes import Drain
from apps.core import clock, lock
from apps.core.errors import PoisonwebError


class Command(BaseCommand):
    help = "Capture what is in the dead-letter queue of a topic now."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topic")

    def handle(self, *_: Any, **options: Any) -> None:
        named = Topic.objects.drained().filter(name=options["topic"])
        topic = named.select_related("broker").first()
        if topic is None:
            raise CommandError(f"no topic {options['topic']} has a dead-letter queue")
        try:
            captured = self._drain(topic)
        except PoisonwebError as trouble:
            raise CommandError(str(trouble)) from trouble
        self.stdout.write(f"captured {captured}")

    def _drain(self, topic: Topic) -> int:
        with lock.attempt(f"lane:{topic.pk}") as held:
            if held is None:
                raise CommandError("a lane is draining this topic already")
            with Drain(topic=topic, clock=clock.now) as drain:
                total = 0
                while captured := drain.once(wait=0.0):
                    total += captured
                return total
