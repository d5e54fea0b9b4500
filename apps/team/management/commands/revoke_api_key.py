"""`manage.py revoke_api_key NAME`: end a key at once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core import clock
from apps.core.actor import Actor
from apps.team import services


class Command(BaseCommand):
    help = "End an API key: its next request is refused."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")

    def handle(self, *_: Any, **options: Any) -> None:
        """Revoke an API key at once; fail if no such key is valid."""
        name = options["name"]
        actor = Actor.system("command line")
        if not services.revoke_api_key(name=name, actor=actor, now=clock.now()):
            raise CommandError(f"there is no key {name} that could be ended")
        self.stdout.write(f"{name} is ended")
